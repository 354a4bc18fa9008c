"""Model families built on rlx's own API, each from its configuration and weights."""
