//! Looks at flows that wait for one of their ends: as evidence against a backend, and so that patience ends when it should.

pub mod deliveries;
pub mod evidence;
pub mod retime;
