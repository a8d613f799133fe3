"""Where cgroups of pods and containers are, with cgroupfs and with systemd."""
