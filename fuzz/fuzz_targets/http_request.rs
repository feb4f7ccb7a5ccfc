//! Any bytes as what a client sends to the HTTP server.
#![no_main]

#[allow(dead_code, reason = "the tests see more of it")]
#[path = "../../tests/admin/fake.rs"]
mod fake;

use libfuzzer_sys::fuzz_target;
use tokio::runtime::{Builder, Runtime};

thread_local! {
    static INSTANCE: (Runtime, fake::FakeInstance) = {
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        let instance = runtime.block_on(async { fake::FakeInstance::start() });
        (runtime, instance)
    };
}

fuzz_target!(|bytes: &[u8]| {
    INSTANCE.with(|(runtime, instance)| baton::fuzzing::http_request(runtime, &instance.admin, bytes));
});
