"""The Kubernetes API's types as far as pods need them: decoding, defaulting, validation, feature gates, quantities.

Pure: no I/O. Used by the agent and the command line; the runtime does not know it.
"""
