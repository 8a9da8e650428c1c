//! Examples, one idea each.
