//! A browser without a window, to see what stands on the page.
//!
//! Chromium with `--remote-debugging-pipe` takes commands of the DevTools protocol on descriptor 3 and answers on 4, each message
//! ended by a zero byte; it ends when the pipe is closed, and so with the test.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

use serde_json::{Value, json};

use super::{Host, secs};

/// A page in a browser on a host.
#[derive(Debug)]
pub struct Browser {
    child: Child,
    commands: Option<ChildStdin>,
    answers: Receiver<Value>,
    asked: u64,
    session: Value,
    _profile: tempfile::TempDir,
}

impl Browser {
    /// Opens `url` in a window of this width.
    #[track_caller]
    pub fn open(host: &Host, url: &str, width: u32) -> Self {
        let profile = tempfile::tempdir().expect("a directory");
        let mut command = Command::new("sh");
        command.args(["-c", "exec chromium \"$@\" 3<&0 4>&1 </dev/null >/dev/null 2>&1", "sh", "--headless"]);
        command.args(["--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]);
        command.args(["--disable-component-update", "--disable-sync", "--no-first-run", "--disable-dev-shm-usage"]);
        command.arg(format!("--user-data-dir={}", profile.path().display())).env("HOME", profile.path());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = host.enter(|| command.spawn()).expect("sh");
        let commands = child.stdin.take();
        let mut output = BufReader::new(child.stdout.take().expect("a pipe"));
        let (sender, answers) = channel();
        std::thread::spawn(move || {
            let mut message = Vec::new();
            while output.read_until(0, &mut message).is_ok_and(|length| length > 0) {
                let answer = serde_json::from_slice(message.strip_suffix(&[0]).unwrap_or(&message));
                message.clear();
                if answer.is_ok_and(|answer| sender.send(answer).is_err()) {
                    return;
                }
            }
        });
        let mut browser = Self { child, commands, answers, asked: 0, session: Value::Null, _profile: profile };
        let target = browser.ask("Target.createTarget", json!({ "url": "about:blank" }))["targetId"].clone();
        let attached = browser.ask("Target.attachToTarget", json!({ "targetId": target, "flatten": true }));
        browser.session = attached["sessionId"].clone();
        browser.resize(width);
        browser.go(url);
        browser
    }

    #[track_caller]
    pub fn go(&mut self, url: &str) {
        let gone = self.ask("Page.navigate", json!({ "url": url }));
        assert!(gone.get("errorText").is_none(), "{url}: {gone}");
    }

    #[track_caller]
    pub fn resize(&mut self, width: u32) {
        let size = json!({ "width": width, "height": 900, "deviceScaleFactor": 1, "mobile": false });
        self.ask("Emulation.setDeviceMetricsOverride", size);
    }

    /// The value of an expression of JavaScript.
    #[track_caller]
    pub fn value(&mut self, expression: &str) -> Value {
        let answer = self.ask("Runtime.evaluate", json!({ "expression": expression, "returnByValue": true }));
        assert!(answer.get("exceptionDetails").is_none(), "{expression}: {answer}");
        answer["result"]["value"].clone()
    }

    /// The texts of the elements that a reader sees who scrolls to them: not those of hidden ones, of ones beyond the edge, or below others.
    #[track_caller]
    pub fn sees(&mut self, selector: &str) -> Vec<String> {
        let script = r#"[...document.querySelectorAll(SELECTOR)].filter((it) => {
            it.scrollIntoView({ block: "center", inline: "nearest" });
            const { left, right, top, bottom, width, height } = it.getBoundingClientRect();
            const seen = document.elementFromPoint((left + right) / 2, (top + bottom) / 2);
            return width > 0 && height > 0 && left >= 0 && right <= document.documentElement.clientWidth && it.contains(seen);
        }).map((it) => it.innerText)"#;
        let seen = self.value(&script.replace("SELECTOR", &Value::from(selector).to_string()));
        seen.as_array().into_iter().flatten().filter_map(|text| Some(text.as_str()?.to_owned())).collect()
    }

    /// Types into an element, in place of what stands there.
    #[track_caller]
    pub fn type_into(&mut self, selector: &str, text: &str) {
        let selector = Value::from(selector).to_string();
        self.value(&format!("document.querySelector({selector}).select(); document.querySelector({selector}).focus()"));
        self.ask("Input.insertText", json!({ "text": text }));
    }

    #[track_caller]
    fn ask(&mut self, method: &str, parameters: Value) -> Value {
        self.asked += 1;
        let mut command = json!({ "id": self.asked, "method": method, "params": parameters });
        if !self.session.is_null() {
            command["sessionId"] = self.session.clone();
        }
        let commands = self.commands.as_mut().expect("it is open");
        commands.write_all(format!("{command}\0").as_bytes()).expect("chromium runs");
        loop {
            let answer = self.answers.recv_timeout(ANSWER).unwrap_or_else(|error| panic!("{method}: {error}"));
            // Others tell of events.
            if answer["id"] == self.asked {
                assert!(answer.get("error").is_none(), "{method}: {answer}");
                return answer["result"].clone();
            }
        }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        self.commands = None;
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A machine under load starts it slowly.
const ANSWER: std::time::Duration = secs(40);
