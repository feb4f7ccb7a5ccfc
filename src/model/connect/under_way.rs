//! The open attempts: one, or two while hedging.

use crate::model::ids::BackendId;

/// One try to reach one backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UnderWay {
    pub number: u8,
    pub backend: BackendId,
    pub started_at_ns: u64,
    pub deadline_ns: u64,
}

/// At most two, in the order of their begin.
#[derive(Debug, Default)]
pub(super) struct Attempts([Option<UnderWay>; 2]);

impl Attempts {
    pub(super) fn add(&mut self, attempt: UnderWay) {
        debug_assert!(self.0[1].is_none(), "a third attempt: {self:?}");
        self.0[usize::from(self.0[0].is_some())] = Some(attempt);
    }

    pub(super) fn take(&mut self, number: u8) -> Option<UnderWay> {
        self.take_if(|attempt| attempt.number == number)
    }

    pub(super) fn take_at(&mut self, backend: BackendId) -> Option<UnderWay> {
        self.take_if(|attempt| attempt.backend == backend)
    }

    /// Takes an attempt that has run out of time.
    pub(super) fn take_late(&mut self, now_ns: u64) -> Option<UnderWay> {
        self.take_if(|attempt| attempt.deadline_ns <= now_ns)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &UnderWay> {
        self.0.iter().flatten()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.iter().next().is_none()
    }

    /// The attempt, if there is only one.
    pub(super) fn only(&self) -> Option<&UnderWay> {
        match &self.0 {
            [Some(only), None] => Some(only),
            _ => None,
        }
    }

    pub(super) fn first_deadline_ns(&self) -> Option<u64> {
        self.iter().map(|attempt| attempt.deadline_ns).min()
    }

    fn take_if(&mut self, is_it: impl Fn(&UnderWay) -> bool) -> Option<UnderWay> {
        let index = self.0.iter().position(|place| place.as_ref().is_some_and(&is_it))?;
        let taken = self.0[index].take();
        self.0[index..].rotate_left(1);
        taken
    }
}
