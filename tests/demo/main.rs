//! The laboratory that comes with Baton: the demo, what cleans up after it, and the apiserver that stands in.

mod guard;
mod stand_in;
mod tour;
