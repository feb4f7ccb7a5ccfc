//! Handles of single parts of shared state: they show in a signature which part a function may use, and it can reach
//! nothing else. Parts of the table are state; those of the ports are messages between two parts of Baton.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// A part that can be passed on without the rest of its whole.
pub trait PartOf {
    type Whole;

    fn in_whole(whole: &Self::Whole) -> &Self;
}

/// One part of a whole. The whole exists as long as any handle of one of its parts.
///
/// The parts stay inside the whole. An `Arc` around each would be another pointer for a worker to follow on its way to
/// every flow; this handle is the whole's own pointer, and only its type names the part.
pub struct Part<P: PartOf + ?Sized> {
    whole: Arc<P::Whole>,
}

impl<P: PartOf + ?Sized> Part<P> {
    /// A handle of one part; the caller's type determines which.
    pub(crate) fn of(whole: &Arc<P::Whole>) -> Self {
        Self { whole: whole.clone() }
    }
}

impl<P: PartOf + ?Sized> Deref for Part<P> {
    type Target = P;

    fn deref(&self) -> &P {
        P::in_whole(&self.whole)
    }
}

impl<P: PartOf + ?Sized> Clone for Part<P> {
    fn clone(&self) -> Self {
        Self::of(&self.whole)
    }
}

impl<P: PartOf + ?Sized> fmt::Debug for Part<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(std::any::type_name::<P>())
    }
}

/// One line for each part of a whole: its type, and its field.
macro_rules! parts {
    ($whole:ty; $($part:ty => $at:ident . $($field:ident).+;)+) => {
        $(impl $crate::part::PartOf for $part {
            type Whole = $whole;

            fn in_whole($at: &$whole) -> &Self {
                &$at.$($field).+
            }
        })+
    };
}

pub(crate) use parts;

#[cfg(test)]
mod tests {
    use super::*;

    struct House {
        rooms: Box<[Room]>,
        name: HouseName,
    }

    struct Room;

    #[derive(Debug, PartialEq)]
    struct HouseName(&'static str);

    parts! {
        House;
        [Room] => house.rooms;
        HouseName => house.name;
    }

    #[test]
    fn a_part_keeps_its_whole_and_costs_one_pointer() {
        let house = Arc::new(House { rooms: [Room, Room].into(), name: HouseName("b") });
        let (rooms, name) = (Part::<[Room]>::of(&house), Part::<HouseName>::of(&house));
        assert!(std::ptr::eq(&*name, &house.name), "it is the whole's own, no copy");
        drop(house);
        assert_eq!((rooms.len(), &*name.clone()), (2, &HouseName("b")));
        assert_eq!(size_of_val(&rooms), size_of::<Arc<House>>());
    }
}
