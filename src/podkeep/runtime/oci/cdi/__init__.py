"""CDI (Container Device Interface): the spec files of this machine, and what a container gets of them."""
