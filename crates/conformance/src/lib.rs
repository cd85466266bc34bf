//! What a backend must agree on with the reference: generated plans, the divergence finder, the watch for values that are not finite.
