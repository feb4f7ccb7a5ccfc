//! The end of one flow, and what decided it.

use std::collections::BTreeMap;

use super::{Explained, Figures, SENTENCES_MAX, Story, failovers, is_by_backend, kills, moment};
use crate::model::end_reason::{ClientSaw, EndReason};
use crate::model::humane::{bytes, duration_ms, plural};
use crate::model::ids::FlowId;
use crate::model::names::named;
use crate::recorder::FrontendSettings;
use crate::table::journal::{Event, What};

/// The last flow with this number that has ended: without a fleet, each process numbers its flows anew.
pub(super) fn flow(story: &Story<'_>, id: FlowId) -> Option<Explained> {
    let is_end = |(event, _): &&(&Event, usize)| matches!(&event.what, What::FlowEnded { flow, .. } if *flow == id);
    let (mut sentences, figures) = end(story, story.events.iter().rposition(|it| is_end(&it))?)?;
    // One that moved and came back is no other.
    let is_moved =
        |(event, _): &&(&Event, usize)| matches!(&event.what, What::FlowEnded { reason: EndReason::Moved, .. });
    let ends = story.events.iter().rev().filter(is_end);
    let earlier = ends.skip(1).filter(|it| !is_moved(it)).count();
    if earlier > 0 && sentences.len() < SENTENCES_MAX {
        let flows = plural(earlier as u64, "flow");
        sentences.push(format!("Earlier processes had {flows} with this number: --until TIME explains such a one."));
    }
    Some((sentences, figures))
}

/// The flow whose end is the event at `at`.
pub(super) fn end(story: &Story<'_>, at: usize) -> Option<Explained> {
    let (event, owner) = story.events[at];
    let What::FlowEnded {
        flow: id,
        frontend,
        backend,
        client,
        node,
        reason,
        duration_ms: lasted_ms,
        bytes_to_backend,
        bytes_to_client,
        error,
        ..
    } = &event.what
    else {
        return None;
    };
    let shown = backend.as_deref().unwrap_or("no backend");
    let why = error.as_ref().map_or(String::new(), |error| format!(" ({error})"));
    let saw = match reason.client_saw() {
        // Without a socket there is no FIN to send.
        ClientSaw::Fin if *reason == EndReason::Rebalanced => "its client saw FIN, or RST if it was offloaded",
        ClientSaw::Fin => "its client saw FIN",
        ClientSaw::Rst if is_refusal(*reason) => "its client saw RST",
        ClientSaw::Rst => "its client saw RST, and could connect again at once",
        ClientSaw::Nothing => "Baton sent its client nothing",
    };
    let mut sentences = vec![
        format!(
            "Flow {id} of {} to {frontend}/{shown} ended at {} for the reason {}: {}",
            named(*client, node.as_deref()),
            moment(event.at_unix_ms),
            reason.label(),
            reason.about().trim_end_matches('.')
        ) + &format!("{why}."),
        format!(
            "It had lasted {}, with {} to the backend and {} to the client; {saw}.",
            duration_ms(*lasted_ms),
            bytes(*bytes_to_backend as f64),
            bytes(*bytes_to_client as f64)
        ),
    ];
    let settings = story.settings(owner, frontend);
    // A header that came, and was wrong, was not late.
    let settings = settings.filter(|_| *reason != EndReason::BadProxyHeader || error.is_some());
    sentences.extend(settings.and_then(|settings| limit(settings, *reason)));
    match reason {
        EndReason::Killed => sentences.extend(kills::order_before(story, at).map(|order| story.earlier(at, order))),
        EndReason::Moved => sentences.extend(failovers::owner_near(story, at)),
        _ => {}
    }
    if let (true, Some(backend)) = (is_by_backend(*reason), backend)
        && let Some(change) = story.change_before(at, frontend, backend)
        && let Some((decided, _)) = story.change(change)
    {
        // What happened, and what decided it.
        sentences.extend(decided.into_iter().take(2));
    }
    let figures = Figures {
        at_unix_ms: event.at_unix_ms,
        flows_ended: BTreeMap::from([(reason.label(), 1)]),
        lasted_ms: Some(*lasted_ms),
        ..Figures::default()
    };
    Some((sentences, figures))
}

/// Whether another connection would have ended for the same reason.
fn is_refusal(reason: EndReason) -> bool {
    use EndReason::{BackendsFull, BadProxyHeader, Denied, LimitFrontend, LimitSource, LimitTotal, NoBackend};
    matches!(reason, LimitTotal | LimitFrontend | LimitSource | BackendsFull | NoBackend | Denied | BadProxyHeader)
}

/// The setting that ended a flow, with its value.
pub(super) fn limit(settings: &FrontendSettings, reason: EndReason) -> Option<String> {
    let (key, value) = match reason {
        EndReason::IdleTimeout => ("idle_timeout", duration_ms(settings.idle_timeout_ms?)),
        EndReason::DrainDeadline | EndReason::FrontendRemoved => {
            ("drain_timeout", duration_ms(settings.drain_timeout_ms))
        }
        EndReason::BadProxyHeader => ("proxy_header_timeout", duration_ms(settings.proxy_header_timeout_ms?)),
        EndReason::ConnectTimedOut => ("connect_timeout", duration_ms(settings.connect_timeout_ms)),
        EndReason::LimitFrontend => ("max_connections", settings.max_connections?.to_string()),
        EndReason::LimitSource => ("max_connections_per_source", settings.max_connections_per_source?.to_string()),
        _ => return None,
    };
    Some(format!("{key} = {value} decided it."))
}
