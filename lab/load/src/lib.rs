//! Load generation: paired time slices.
