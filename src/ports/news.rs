//! That an event was recorded, for whoever shows events to people who watch. The journal has it beside its rings.

use tokio::sync::watch;

/// Wakes those who subscribed; any number of events may be one wake.
#[derive(Debug, Default)]
pub(crate) struct News(watch::Sender<()>);

impl News {
    pub(crate) fn announce(&self) {
        self.0.send_replace(());
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<()> {
        self.0.subscribe()
    }
}
