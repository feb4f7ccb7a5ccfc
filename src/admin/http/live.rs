//! `/live`: the changing parts of the page as server-sent events (WHATWG HTML, section 9.2), so that an open page shows an event at once.
//!
//! What all readers see is rendered once for all of them, once a second and after each event, and only while there is a reader. The
//! lists are each reader's own, as its search is. A message has the parts that have changed since the reader's last one; without a
//! change it is empty, and tells the reader that the instance lives.
//!
//! A stream costs one connection of the server's and one place here. It ends with the server (a stop, an upgrade, a reload that moves
//! it), before the connection's time is over, and when its reader reads nothing. Browsers connect again by themselves.

use std::convert::Infallible;
use std::fmt::Write;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use hyper::header::RETRY_AFTER;
use hyper::{Method, Request, Response, StatusCode};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{DoorPermit, DoorSources, HttpLimits, Visit, answer, text};
use crate::admin::Admin;
use crate::admin::page::{self, PageView};
use crate::admin::search::{self, PageLists, PageSearch};
use crate::sys::clock::now_ns;

/// Pause after an event's rendering, as a part of the pause until the next one without an event: many events are one message.
const EVENT_PAUSE_PART: u32 = 4;

/// The longest time without a message.
const BEAT: Duration = Duration::from_secs(1);

/// Pause between two looks for a reader's lists, each of which walks through all flows.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// Tells the browser when to connect again, in milliseconds.
const RETRY_MS: u32 = 300;

/// The body of an answer.
pub(super) enum PageBody {
    Whole(Full<Bytes>),
    /// Ends when its sender is dropped.
    Stream(mpsc::Receiver<Bytes>),
}

/// What all readers see, and the readers' places.
#[derive(Debug)]
pub(super) struct LiveHub {
    shown: watch::Sender<Arc<Shown>>,
    /// A reader has come.
    came: Notify,
    room: Arc<Semaphore>,
    sources: DoorSources,
    ended: CancellationToken,
}

/// The last rendering. Empty: there is none.
#[derive(Clone, Debug, Default)]
struct Shown {
    /// Grows with each rendering.
    version: u64,
    /// JSON.
    title: String,
    icon: String,
    parts: Vec<ShownPart>,
}

#[derive(Clone, Debug)]
struct ShownPart {
    id: &'static str,
    /// A string of JSON.
    element: Arc<str>,
    /// The version in which it came.
    since: u64,
}

/// One stream.
struct LiveReader {
    admin: Arc<Admin>,
    search: PageSearch,
    shown: watch::Receiver<Arc<Shown>>,
    /// The version that it has.
    has: u64,
    /// Its lists, as last sent, and the time for the next look.
    lists: Vec<(&'static str, String)>,
    /// Those that it has not been sent.
    fresh: Vec<(&'static str, String)>,
    /// Whether a source lists nodes.
    has_nodes: bool,
    look_at: Instant,
    _place: (OwnedSemaphorePermit, DoorPermit),
}

impl LiveHub {
    pub(super) fn new(limits: &HttpLimits) -> Arc<Self> {
        Arc::new(Self {
            shown: watch::Sender::default(),
            came: Notify::new(),
            room: Arc::new(Semaphore::new(limits.streams)),
            sources: DoorSources::default(),
            ended: CancellationToken::new(),
        })
    }

    /// All streams end when the guard is dropped.
    pub(super) fn end_with_this(&self) -> DropGuard {
        self.ended.clone().drop_guard()
    }

    /// Renders for the readers, as long as it is polled.
    pub(super) async fn run(&self, admin: &Arc<Admin>) {
        let mut news = admin.table.journal.news.subscribe();
        let mut version = 0;
        loop {
            if self.shown.receiver_count() == 0 {
                // The next reader gets nothing old.
                self.shown.send_replace(Arc::default());
                self.came.notified().await;
            }
            news.mark_unchanged();
            version += 1;
            let before = self.shown.borrow().clone();
            let (shown, took) = admin
                .aside(move |admin| {
                    let begun_ns = now_ns();
                    let shown = Shown::new(&PageView::gather(admin, begun_ns), &before, version);
                    (shown, Duration::from_nanos(now_ns() - begun_ns))
                })
                .await;
            self.shown.send_replace(Arc::new(shown));
            let pause = search::pause(took);
            sleep(pause / EVENT_PAUSE_PART).await;
            let rest = sleep(pause - pause / EVENT_PAUSE_PART);
            tokio::select! {
                () = rest => {}
                _ = news.changed() => {}
            }
        }
    }

    /// `None`: there is no place.
    fn enter(&self, visit: &Visit) -> Option<(OwnedSemaphorePermit, DoorPermit)> {
        let of_source = self.sources.enter(visit.from, visit.limits.streams_of_source)?;
        Some((self.room.clone().try_acquire_owned().ok()?, of_source))
    }
}

pub(super) fn respond(admin: &Arc<Admin>, visit: &Visit, request: &Request<Incoming>) -> Response<PageBody> {
    if request.method() == Method::HEAD {
        return answer(StatusCode::OK, EVENT_STREAM, "");
    }
    let Some(place) = visit.live.enter(visit) else {
        let mut full =
            text(StatusCode::SERVICE_UNAVAILABLE, "as many pages are open as this server keeps up to date\n");
        full.headers_mut().insert(RETRY_AFTER, 10.into());
        return full;
    };
    let reader = LiveReader {
        admin: admin.clone(),
        search: PageSearch::of_query(request.uri().query().unwrap_or("")),
        shown: visit.live.shown.subscribe(),
        has: 0,
        lists: Vec::new(),
        fresh: Vec::new(),
        has_nodes: false,
        look_at: Instant::now(),
        _place: place,
    };
    visit.live.came.notify_one();
    let (sender, receiver) = mpsc::channel(1);
    // The connection's own end would break an event in two.
    let until = visit.begun + visit.limits.connection * 9 / 10;
    let (ended, cut_off, slow) = (visit.live.ended.clone(), visit.cut_off.clone(), visit.limits.head);
    tokio::spawn(async move {
        let served = timeout_at(until, reader.serve(&sender, slow));
        if let Some(Ok(ReaderEnd::Slow)) = ended.run_until_cancelled(served).await {
            cut_off.cancel();
        }
    });
    let mut stream = answer(StatusCode::OK, EVENT_STREAM, "");
    *stream.body_mut() = PageBody::Stream(receiver);
    stream
}

const EVENT_STREAM: &str = "text/event-stream";

/// Why a stream ends.
enum ReaderEnd {
    Gone,
    /// It has not read a message within the time for one.
    Slow,
}

impl LiveReader {
    /// `slow`: the time that it has to take a message.
    async fn serve(mut self, to: &mpsc::Sender<Bytes>, slow: Duration) -> ReaderEnd {
        let mut message = format!("retry: {RETRY_MS}\n");
        loop {
            self.look().await;
            let shown = self.shown.borrow_and_update().clone();
            if !shown.parts.is_empty() || self.has > 0 {
                self.write(&shown, &mut message);
                match timeout(slow, to.send(Bytes::from(std::mem::take(&mut message)))).await {
                    Ok(Ok(())) => {}
                    Ok(Err(_)) => return ReaderEnd::Gone,
                    Err(_) => return ReaderEnd::Slow,
                }
            }
            tokio::select! {
                changed = self.shown.changed() => if changed.is_err() { return ReaderEnd::Gone },
                () = sleep(BEAT) => {}
                () = to.closed() => return ReaderEnd::Gone,
            }
        }
    }

    /// Looks for its lists, if it is time.
    async fn look(&mut self) {
        if Instant::now() < self.look_at {
            return;
        }
        let search = self.search.clone();
        let (lists, has_nodes, took) = self
            .admin
            .aside(move |admin| {
                let begun_ns = now_ns();
                let lists = PageLists::find(admin, search);
                let parts = page::parts_of_lists(&lists);
                (parts, lists.has_nodes(), Duration::from_nanos(now_ns() - begun_ns))
            })
            .await;
        self.look_at = Instant::now() + search::pause(took).max(LOOK_EVERY);
        self.fresh = lists.into_iter().filter(|part| !self.lists.contains(part)).collect();
        self.lists.retain(|(id, _)| self.fresh.iter().all(|(fresh, _)| fresh != id));
        self.lists.extend(self.fresh.iter().cloned());
        self.has_nodes = has_nodes;
    }

    /// Ends `message` with what the reader does not have yet.
    fn write(&mut self, shown: &Shown, message: &mut String) {
        let shared = shown.parts.iter().filter(|part| part.since > self.has);
        let shared = shared.map(|part| (part.id, part.element.to_string()));
        let own = std::mem::take(&mut self.fresh).into_iter().map(|(id, element)| (id, json(&element)));
        let parts: Vec<_> = shared.chain(own).map(|(id, element)| format!("\"{id}\":{element}")).collect();
        self.has = self.has.max(shown.version);
        if parts.is_empty() {
            message.push_str("data: {}\n\n");
            return;
        }
        let (title, icon, build, nodes, parts) =
            (&shown.title, &shown.icon, page::build(), self.has_nodes, parts.join(","));
        write!(
            message,
            "data: {{\"build\":\"{build}\",\"title\":{title},\"icon\":{icon},\"nodes\":{nodes},\"parts\":{{{parts}}}}}\n\n"
        )
        .expect("a string takes everything");
    }
}

impl Shown {
    fn new(view: &PageView, before: &Self, version: u64) -> Self {
        let parts = view.parts().into_iter().map(|(id, element)| {
            let element = json(element);
            let same = before.parts.iter().find(|part| part.id == id && *part.element == *element);
            same.cloned().unwrap_or_else(|| ShownPart { id, element: element.into(), since: version })
        });
        Self { version, title: json(&view.title), icon: json(&view.icon), parts: parts.collect() }
    }
}

/// As a string of JSON, which has no line end: in an event, a line end is the end of a field.
fn json(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

impl Body for PageBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        match self.get_mut() {
            Self::Whole(whole) => Pin::new(whole).poll_frame(context),
            Self::Stream(messages) => messages.poll_recv(context).map(|message| Some(Ok(Frame::data(message?)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(whole) => whole.is_end_stream(),
            Self::Stream(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(whole) => whole.size_hint(),
            Self::Stream(_) => SizeHint::default(),
        }
    }
}
