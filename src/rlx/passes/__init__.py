"""Graph to graph, same meaning. `pipeline.optimise` runs the passes in order; none of them knows a backend."""
