"""One module per kind of thing. Routes translate between HTTP and the parts in `api.deps`; they decide nothing themselves."""
