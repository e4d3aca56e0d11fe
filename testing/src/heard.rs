//! A subscriber that keeps what the library says in events and spans, for tests that read it.

use std::sync::{Arc, Mutex};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::NoSubscriber;
use tracing::{Dispatch, Event, Level, Metadata, Subscriber, dispatcher};

/// What one event or span says: its level, its target or name, and its fields in words. A message is the
/// field `message`.
pub type Said = (Level, String, Vec<(&'static str, String)>);

/// Keeps what is said at `info` and `warn`.
#[derive(Clone, Debug, Default)]
pub struct Heard {
    events: Arc<Mutex<Vec<Said>>>,
    spans: Arc<Mutex<Vec<Said>>>,
}

impl Heard {
    /// All events so far.
    #[must_use]
    pub fn events(&self) -> Vec<Said> {
        self.events.lock().unwrap().clone()
    }

    /// All spans so far.
    #[must_use]
    pub fn spans(&self) -> Vec<Said> {
        self.spans.lock().unwrap().clone()
    }
}

#[derive(Default)]
struct Words(Vec<(&'static str, String)>);

impl Visit for Words {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.0.push((field.name(), format!("{value:?}")));
    }
}

impl Subscriber for Heard {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::INFO
    }
    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let (mut words, metadata) = (Words::default(), span.metadata());
        span.record(&mut words);
        self.spans.lock().unwrap().push((*metadata.level(), metadata.name().to_owned(), words.0));
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        let mut words = Words::default();
        event.record(&mut words);
        let target = event.metadata().target().to_owned();
        self.events.lock().unwrap().push((*event.metadata().level(), target, words.0));
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// The words of a field.
#[must_use]
pub fn field<'s>(said: &'s Said, name: &str) -> Option<&'s str> {
    said.2.iter().find(|(other, _)| *other == name).map(|(_, value)| value.as_str())
}

/// The messages of the warnings while `work` runs, from this thread.
#[must_use]
pub fn warnings(work: impl FnOnce()) -> Vec<String> {
    let heard = Heard::default();
    // With one subscriber alone, a thread without it may decide that nobody listens.
    let _second = Dispatch::new(NoSubscriber::new());
    dispatcher::with_default(&Dispatch::new(heard.clone()), work);
    let warned = heard.events().into_iter().filter(|said| said.0 == Level::WARN);
    warned.filter_map(|said| field(&said, "message").map(str::to_owned)).collect()
}
