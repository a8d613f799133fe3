"""``podkeep classes``: QoS-class resources (KEP-3008); ``assignments`` reads TYPE=CLASS for ``podkeep run``, too."""
