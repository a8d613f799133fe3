"""Admission: plugins that change or refuse writes, each a pure function over a write and a lister."""
