//! An explanation as a value: a verdict and steps; and its text.

use std::fmt;
use std::net::SocketAddr;

use serde::Serialize;

use super::finding::Kind;

/// The answer to a question about the way of a client's packets.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Explanation {
    /// The question: `10.244.1.4 to TCP 10.96.0.1:443`.
    pub(crate) question: String,
    pub(crate) verdict: Verdict,
    /// The endpoints that answer, with the source that they see.
    pub(crate) endpoints: Vec<Answering>,
    /// The steps in the order of the packet's way, the first one being step 1.
    pub(crate) steps: Vec<Step>,
}

/// What becomes of a new connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Verdict {
    pub(crate) outcome: Outcome,
    /// One line that names the cause.
    pub(crate) text: String,
}

/// What a client sees. The better first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Outcome {
    /// An endpoint accepts the connection.
    Answered,
    /// The client receives an error.
    Refused,
    /// The client receives nothing.
    Dropped,
    /// The facts do not decide it.
    Unknown,
}

impl Outcome {
    /// Returns the exit code of `explain`.
    pub(crate) fn exit_code(self) -> u8 {
        match self {
            Self::Answered => 0,
            Self::Refused => 3,
            Self::Dropped => 4,
            Self::Unknown => 5,
        }
    }

    fn word(self) -> &'static str {
        match self {
            Self::Answered => "answered",
            Self::Refused => "refused",
            Self::Dropped => "dropped",
            Self::Unknown => "unknown",
        }
    }
}

/// An endpoint that answers.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(crate) struct Answering {
    pub(crate) address: SocketAddr,
    /// Whether it sees an address of this node instead of the client's.
    pub(crate) masqueraded: bool,
}

/// A step of the packet's way.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Step {
    /// What happens, as a clause.
    pub(crate) what: String,
    /// The field, flag, setting or rule that decides it; empty if nothing does.
    pub(crate) because: String,
    pub(crate) seen: Seen,
    /// One line for each endpoint or entry.
    pub(crate) details: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) finding: Option<Finding>,
}

/// Where a step is seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Seen {
    /// In the plan, which follows from objects and settings.
    Plan,
    /// In the kernel.
    Kernel,
    /// In packets, while they passed.
    Live,
}

/// Something that ends or endangers the connection.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Finding {
    /// Its code, a section of the documentation.
    pub(crate) code: &'static str,
    /// What it does to the connection.
    pub(crate) outcome: Outcome,
    /// The cause, as the first line has it.
    pub(crate) text: String,
    /// The command that shows more, or that helps.
    pub(crate) next: String,
}

impl Finding {
    pub(crate) fn new(kind: &Kind, outcome: Outcome, text: String, next: String) -> Self {
        let code = kind.code;
        Self {
            code,
            outcome,
            text,
            next,
        }
    }
}

impl Step {
    pub(crate) fn new(what: impl Into<String>, because: impl Into<String>, seen: Seen) -> Self {
        Self {
            what: what.into(),
            because: because.into(),
            seen,
            details: Vec::new(),
            finding: None,
        }
    }

    pub(crate) fn with_details(mut self, details: Vec<String>) -> Self {
        self.details = details;
        self
    }

    /// Adds a finding whose text is that of the step.
    pub(crate) fn finding(
        mut self,
        kind: &Kind,
        outcome: Outcome,
        next: impl Into<String>,
    ) -> Self {
        let text = self.what.clone();
        self.finding = Some(Finding::new(kind, outcome, text, next.into()));
        self
    }
}

impl Explanation {
    /// Returns the explanation of `steps`, whose packets reach `endpoints`.
    ///
    /// The first finding that ends connections is the verdict; if it is not certain, one of packets that passed is. Without
    /// one, the endpoints are, and other findings follow.
    pub(crate) fn new(question: String, steps: Vec<Step>, endpoints: Vec<Answering>) -> Self {
        let found = steps.iter().zip(1..);
        let found =
            found.filter_map(|(step, number)| Some((step.finding.as_ref()?, step.seen, number)));
        let ending = found
            .clone()
            .filter(|(it, _, _)| it.outcome != Outcome::Answered);
        // What packets did decides what rules leave open.
        let is_seen = |(it, seen, _): &(&Finding, Seen, i32)| {
            *seen == Seen::Live && it.outcome != Outcome::Unknown
        };
        let first = ending.clone().next();
        let first = match first {
            Some((it, ..)) if it.outcome == Outcome::Unknown => {
                ending.clone().find(is_seen).or(first)
            }
            _ => first,
        };
        let verdict = match first {
            Some((finding, _, number)) => Verdict {
                outcome: finding.outcome,
                text: format!(
                    "{} at step {number}: {} [{}]",
                    finding.outcome.word(),
                    finding.text,
                    finding.code
                ),
            },
            None => {
                let doubts = found.map(|(it, ..)| format!("; but {} [{}]", it.text, it.code));
                Verdict {
                    outcome: Outcome::Answered,
                    text: answered(&endpoints) + &doubts.collect::<String>(),
                }
            }
        };
        let endpoints = match verdict.outcome {
            Outcome::Answered | Outcome::Unknown => endpoints,
            Outcome::Refused | Outcome::Dropped => Vec::new(),
        };
        Self {
            question,
            verdict,
            endpoints,
            steps,
        }
    }
}

/// The most endpoints in the first line.
const MOST_NAMED: usize = 4;

fn answered(endpoints: &[Answering]) -> String {
    let named = endpoints.iter().take(MOST_NAMED);
    let named: Vec<String> = named.map(|it| it.address.to_string()).collect();
    let more = match endpoints.len().saturating_sub(MOST_NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    match endpoints.len() {
        0 => "answered by a process of this node".to_owned(),
        1 => format!("answered by 1 endpoint: {}", named.join(", ")),
        count => format!("answered by {count} endpoints: {}{more}", named.join(", ")),
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.verdict.text)?;
        writeln!(f, "   {}", self.question)?;
        for (step, number) in self.steps.iter().zip(1..) {
            write!(f, "{number:2}. {}", step.what)?;
            let seen = match step.seen {
                Seen::Plan => "plan",
                Seen::Kernel => "kernel",
                Seen::Live => "live",
            };
            writeln!(f, " [{seen}]")?;
            if !step.because.is_empty() {
                writeln!(f, "      because: {}", step.because)?;
            }
            for detail in &step.details {
                writeln!(f, "      {detail}")?;
            }
            if let Some(finding) = &step.finding {
                writeln!(f, "      {}: see docs/explain.md", finding.code)?;
                writeln!(f, "      next: {}", finding.next)?;
            }
        }
        Ok(())
    }
}
