//! `baton explain`: why something happened, in a few sentences, from what was recorded.

mod node;
mod peer;
mod story;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;

use clap::Args;
use serde::Serialize;

use super::bundle::PEERS;
use super::living::LivingPlace;
use super::output::{CliError, Output};
use super::recording::{self, RecordingFrom};
use super::{shell, socket};
use crate::admin::protocol::{FlowFilter, FlowRow};
use crate::admin::status::PeersReport;
use crate::model::humane::duration_ms;
use crate::model::ids::FlowId;
use crate::model::names::named;
use crate::recorder::Recording;
use crate::sys::clock::unix_ms;
use node::living_of_node;
use peer::KnownPeer;
use story::{Explained, Figures, SENTENCES_MAX, Story, moment};

#[derive(Debug, Args)]
pub(super) struct ExplainArguments {
    /// The number of a flow or of an event (flow:7 and event:7 say which), a backend (NAME or FRONTEND/NAME), a peer (its name or its
    /// address; instance:NAME if a backend has its name), this instance, an address of the VIP, a frontend, a node (its name or its
    /// address), or "last": a fault that still goes on, or else the last event that may be one.
    #[arg(add = shell::backend_and_peer_names())]
    subject: Subject,
    /// Leaves out what was recorded after this time: 03:12, 2026-11-25T03:12Z, 10m (ago).
    #[arg(long, value_name = "TIME", value_parser = recording::time)]
    until: Option<u64>,
    #[command(flatten)]
    from: RecordingFrom,
}

/// Who or what is explained.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Subject {
    /// A flow, or else an event.
    Number(u64),
    Flow(FlowId),
    Event(u64),
    /// A backend; or else a peer, a VIP, this instance, a frontend or a node.
    Backend(String),
    /// A peer, or else this instance.
    Instance(String),
    Last,
}

/// The answer, as `--json` prints it.
#[derive(Debug, Serialize)]
struct Explanation {
    sentences: Vec<String>,
    #[serde(flatten)]
    figures: Figures,
}

pub(super) fn run(
    arguments: &ExplainArguments,
    named: Option<PathBuf>,
    config: Option<&Path>,
    output: &Output,
) -> Result<ExitCode, CliError> {
    let source = recording::find(&arguments.from, named.clone(), config);
    let read = source.and_then(|it| Ok((it.read(0..=arguments.until.unwrap_or(u64::MAX))?, it)));
    // What lives needs no record.
    let (recording, source) = match read {
        Ok((recording, source)) => (recording, Ok(source)),
        Err(error) if arguments.from.is_named() => return Err(error),
        Err(error) => (Recording::default(), Err(error)),
    };
    recording::say_faults(&recording);
    let story = Story::new(&recording);
    // Of a peer of the running instance more than its events is known.
    let of_peer = |name: &str| {
        let in_bundle = arguments.until.is_none().then(|| arguments.from.part::<PeersReport>(PEERS));
        if let Some(Ok(Some((report, at_ms)))) = in_bundle
            && let Some(peer) = KnownPeer::of_bundle(report, name)
        {
            return Some(peer.tell(&story, at_ms));
        }
        let socket = instance_of(arguments, named.as_deref(), config);
        let known = socket.and_then(|socket| KnownPeer::find(name, &socket));
        known.map_or_else(|| story.tell(&Subject::Instance(name.to_owned())), |peer| Some(peer.tell(&story, unix_ms())))
    };
    // A kubelet's connections live for days.
    let of_name = |name: &str| {
        let lives = place(arguments, named.as_deref(), config).and_then(|place| living_of_node(name, place));
        match (lives, story.named(name)) {
            (Some(lives), Some((mut sentences, figures))) => {
                sentences.insert(0, lives);
                sentences.truncate(SENTENCES_MAX);
                Some((sentences, figures))
            }
            (lives, recorded) => recorded.or_else(|| lives.map(|lives| (vec![lives], Figures::default()))),
        }
    };
    let recorded = match &arguments.subject {
        Subject::Instance(name) => of_peer(name).or_else(|| of_name(name)),
        subject => story.tell(subject).map(|it| beside_peer(arguments, it, &story)),
    };
    // First what lives: processes before this one may have had a flow of the same number.
    let living = living(arguments, named.as_deref(), config);
    let explained = match (living, recorded) {
        (Some(living), recorded) => {
            let moved_ms = match arguments.subject {
                Subject::Number(id) | Subject::Flow(FlowId(id)) => story.moved_away_ms(FlowId(id)),
                _ => None,
            };
            Some((beside_ended(living, recorded.is_some(), moved_ms), Figures::default()))
        }
        (None, recorded) => recorded,
    };
    let explained = explained.or_else(|| match &arguments.subject {
        Subject::Number(number) => story.tell(&Subject::Event(*number)).map(|it| of_event(*number, it)),
        Subject::Backend(name) => of_peer(name).or_else(|| of_name(name)),
        _ => None,
    });
    let is_gone = arguments.subject == Subject::Last && answers(arguments, named.as_deref(), config) == Some(false);
    let explained = if is_gone { story.after_the_end(explained) } else { explained };
    let Some((sentences, figures)) = explained else {
        let at_peer = at_peer(arguments, named.as_deref(), config).unwrap_or_default();
        let subject = arguments.subject.in_words() + &at_peer;
        return Err(CliError::NotExplained { subject, covers: source?.covers_in_words(&recording) });
    };
    match output.json {
        true => output.document(&Explanation { sentences, figures })?,
        false => {
            output.wrapped(&(sentences.join("\n") + "\n"))?;
            if !figures.beside.is_empty() {
                output.line("About that time, or still so:")?;
                output.wrapped(&figures.beside.iter().map(|line| format!("- {line}\n")).collect::<String>())?;
            }
            for command in &figures.see_also {
                output.line(output.faint(&format!("another has this name: {command}")))?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Says that the number is not that of a flow.
fn of_event(number: u64, (mut sentences, figures): (Vec<String>, Figures)) -> (Vec<String>, Figures) {
    sentences[0] = format!("Event {number}: {}", sentences[0]);
    (sentences, figures)
}

/// Says that the record has the end of another flow with this number, or that this one was at another instance meanwhile.
fn beside_ended(mut living: Vec<String>, another_has_ended: bool, moved_ms: Option<u64>) -> Vec<String> {
    if let Some(at_ms) = moved_ms {
        living.push(format!("It had moved to another instance at {}, and came back.", moment(at_ms)));
    } else if another_has_ended {
        living.push(
            "An earlier process had a flow with this number, which has ended: --until TIME explains that one."
                .to_owned(),
        );
    }
    living
}

/// Says that a peer has the name of this backend.
fn beside_peer(arguments: &ExplainArguments, (sentences, mut figures): Explained, story: &Story<'_>) -> Explained {
    if let Subject::Backend(name) = &arguments.subject
        && story.of_peer(name).next().is_some()
    {
        figures.see_also.push(format!("baton explain instance:{name}"));
    }
    (sentences, figures)
}

/// The socket of the running instance. `None`: another's records are asked for, or those of the past.
fn instance_of(arguments: &ExplainArguments, socket: Option<&Path>, config: Option<&Path>) -> Option<PathBuf> {
    if arguments.from.is_named() || arguments.until.is_some() {
        return None;
    }
    socket.map_or_else(|| socket::find(config), |path| Ok(path.to_owned())).ok()
}

/// Whether the instance answers now, or did when the bundle was made. `None`: nobody can tell, or another time is asked for.
fn answers(arguments: &ExplainArguments, socket: Option<&Path>, config: Option<&Path>) -> Option<bool> {
    if arguments.from.is_bundle() {
        return Some(arguments.from.part::<serde_json::Value>(PEERS).ok()?.is_some());
    }
    Some(socket::connect_briefly(&instance_of(arguments, socket, config)?).is_ok())
}

/// Where flows that go on are looked for. `None`: the past is asked for.
fn place<'a>(
    arguments: &'a ExplainArguments,
    socket: Option<&'a Path>,
    config: Option<&'a Path>,
) -> Option<LivingPlace<'a>> {
    arguments.until.is_none().then_some(LivingPlace { from: &arguments.from, socket, config })
}

/// A flow that has not ended, by its number, its client or its source.
fn living(arguments: &ExplainArguments, socket: Option<&Path>, config: Option<&Path>) -> Option<Vec<String>> {
    let (id, end) = match &arguments.subject {
        Subject::Number(id) | Subject::Flow(FlowId(id)) => (Some(FlowId(*id)), None),
        Subject::Backend(name) => (None, Some(name.parse::<SocketAddr>().ok()?)),
        _ => return None,
    };
    let is_it = |row: &FlowRow| Some(row.id) == id || end.is_some() && (Some(row.client) == end || row.source == end);
    let living = place(arguments, socket, config)?.flows(FlowFilter::default(), is_it).ok()??;
    let as_of = living.as_of();
    let FlowRow { id, frontend, backend, client, node, state, ending, age_ms, idle_ms, stays, .. } =
        living.rows.into_iter().next()?;
    let backend = backend.as_deref().unwrap_or("no backend yet");
    let (age, idle) = (duration_ms(age_ms), duration_ms(idle_ms));
    let mut sentences = vec![format!(
        "Flow {id} of {} to {frontend}/{backend} goes on: it is {}, began {age} ago, and moved its last byte {idle} ago{as_of}.",
        named(client, node.as_deref()),
        state.label()
    )];
    sentences.extend(stays.map(|why| format!("It stays proxied: {why}.")));
    sentences.extend(ending.then(|| "It has an order to end, and waits for its turn.".to_owned()));
    Some(sentences)
}

/// The peer at which this flow began, and may be still: a part of a sentence.
fn at_peer(arguments: &ExplainArguments, socket: Option<&Path>, config: Option<&Path>) -> Option<String> {
    let (Subject::Number(id) | Subject::Flow(FlowId(id))) = arguments.subject else { return None };
    let tag = FlowId(id).tag();
    let peer = place(arguments, socket, config)?.peer(|name, _| tag != 0 && name.tag() == tag)?;
    Some(format!("; it began at {peer}: ask there (`baton explain`)"))
}

impl FromStr for Subject {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| text.parse().map_err(|_| format!("{text:?} is no number"));
        match text.split_once(':') {
            Some(("flow", flow)) => flow
                .parse()
                .map(Self::Flow)
                .map_err(|_| format!("{flow:?} is no flow: expected 7 or 6066-6b089d630013")),
            Some(("event", event)) => Ok(Self::Event(number(event)?)),
            Some(("instance", name)) if !name.is_empty() => Ok(Self::Instance(name.to_owned())),
            Some(("backend", name)) if !name.is_empty() => Ok(Self::Backend(name.to_owned())),
            _ if text == "last" => Ok(Self::Last),
            _ if text.is_empty() => Err("expected a flow, an event, a backend, a peer or \"last\"".to_owned()),
            _ => Ok(match (shown_id(text), text.parse()) {
                (Some(flow), _) => Self::Flow(flow),
                (None, Ok(number)) => Self::Number(number),
                (None, Err(_)) => Self::Backend(text.to_owned()),
            }),
        }
    }
}

/// A flow's number as a fleet's instances show it, `6066-6b089d630013`. No backend is taken for one that is not exactly of this form.
fn shown_id(text: &str) -> Option<FlowId> {
    let (tag, count) = text.split_once('-')?;
    let is_hex = |text: &str| text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    ((tag.len(), count.len()) == (4, 12) && is_hex(tag) && is_hex(count)).then(|| text.parse().ok())?
}

impl Subject {
    fn in_words(&self) -> String {
        match self {
            Self::Number(number) => format!("no flow with the number {number} that has ended, and no such event"),
            Self::Flow(flow) => format!("no end of flow {flow}"),
            Self::Event(number) => format!("no event {number}"),
            Self::Backend(name) if name.parse::<SocketAddr>().is_ok() => {
                format!(
                    "no backend, no peer and no flow that goes on with {name:?} (`baton flows --client` finds a client's flows, `baton who` the client that was behind an address of Baton's)"
                )
            }
            Self::Backend(name) => format!(
                "no event of a backend {name:?}, and no peer, VIP, instance, frontend or node of this name (`baton nodes` and `baton flows` find a node's flows)"
            ),
            Self::Instance(name) => format!("no instance {name:?}, and no event of one"),
            Self::Last => "no event that may be a fault".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subject_is_a_number_a_name_or_the_last() {
        let subject = |text: &str| text.parse::<Subject>();
        assert_eq!(subject("7"), Ok(Subject::Number(7)));
        assert_eq!(subject("flow:7"), Ok(Subject::Flow(FlowId(7))));
        assert_eq!(subject("event:7"), Ok(Subject::Event(7)));
        assert_eq!(subject("apiserver/cp1"), Ok(Subject::Backend("apiserver/cp1".to_owned())));
        assert_eq!(subject("last"), Ok(Subject::Last));
        let shown = FlowId::of(0x6066, 0x6b08_9d63_0013);
        assert_eq!(subject(&shown.to_string()), Ok(Subject::Flow(shown)));
        assert_eq!(subject(&format!("flow:{shown}")), Ok(Subject::Flow(shown)));
        assert_eq!(subject("be-1"), Ok(Subject::Backend("be-1".to_owned())));
        assert_eq!(subject("instance:cp1"), Ok(Subject::Instance("cp1".to_owned())));
        assert_eq!(subject("backend:cp1"), Ok(Subject::Backend("cp1".to_owned())));
        assert_eq!(subject("fd77::22"), Ok(Subject::Backend("fd77::22".to_owned())));
        assert!(subject("flow:x").is_err() && subject("").is_err());
    }
}
