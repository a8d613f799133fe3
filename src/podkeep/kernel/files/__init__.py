"""Files that somebody hostile may have made: opening, walking, measuring, removing them.

By descriptor, without following links. Used by whoever reaches what a container, an image or a client has written.
"""
