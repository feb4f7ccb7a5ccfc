//! Which backends have more than their share of flows, and how many should move.
