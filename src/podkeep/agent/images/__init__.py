"""Images of containers and volumes: pulled by policy, with back-off and credentials, removed when they are in the way.

``puller.Images`` gives pods their images; ``garbage.ImageGarbage`` removes those that no pod uses.
"""
