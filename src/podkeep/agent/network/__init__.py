"""What a pod knows of its network: resolv.conf, /etc/hosts, the order of its addresses. Pure."""
