//! The command `ipvs-proxier top`.
//!
//! ```text
//!  process of `run` ── socket ─▶ client ─▶ Overview ─▶ Screen ─▶ draw ─▶ terminal
//!                                             keys ──────┘
//! ```

use std::io::IsTerminal as _;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::Args;
use ratatui::crossterm::event::{self, Event};

use super::{DurationFlag, Output, StateFlags, print};
use crate::cluster::model::ObjectName;
use crate::observe::overview::{Query, Sort, text};

mod client;
mod draw;
mod screen;
#[cfg(test)]
mod tests;

use client::Client;
use screen::{Reaction, Screen};

/// Flags of `top`.
#[derive(Args, Debug)]
pub(super) struct Flags {
    #[command(flatten)]
    state: StateFlags,

    /// Service whose frontends and endpoints are shown.
    #[arg(value_name = "NAMESPACE/NAME", value_parser = service)]
    service: Option<ObjectName>,

    /// Order of the Services.
    #[arg(long, value_enum, default_value_t)]
    sort: Sort,

    /// Only Services whose name or address contains this text; state:draining for those that drain.
    #[arg(long, value_name = "TEXT", default_value = "")]
    filter: String,

    /// Only Services with a fault.
    #[arg(long)]
    wrong: bool,

    /// The most Services; at most 200. A terminal shows as many as fit.
    #[arg(long, value_name = "NUMBER", default_value = "50")]
    rows: usize,

    /// Print the view once and exit.
    #[arg(long)]
    once: bool,

    /// Time between two looks.
    #[arg(long, value_name = "DURATION", default_value = "2s")]
    interval: DurationFlag,

    /// Format of the output with --once.
    #[arg(long, short, value_enum, default_value_t)]
    output: Output,
}

fn service(text: &str) -> Result<ObjectName, &'static str> {
    match text.split_once('/') {
        Some((namespace, name)) => Ok(ObjectName::new(namespace, name)),
        None => Err("write NAMESPACE/NAME"),
    }
}

impl Flags {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let client = Client::new(self.state.socket());
        let query = Query {
            sort: self.sort,
            filter: self.filter.to_lowercase(),
            only_wrong: self.wrong,
            rows: self.rows,
            service: self.service,
            ..Query::default()
        };
        if self.once {
            print(&match self.output {
                Output::Json => client.json(&query)?,
                Output::Text => text::page(&client.view(&query)?),
            })?;
            return Ok(ExitCode::SUCCESS);
        }
        anyhow::ensure!(
            std::io::stdout().is_terminal() && std::io::stdin().is_terminal(),
            "standard input and output are no terminal; pass --once, or with kubectl exec the flags -it"
        );
        // Before the terminal changes, so that the error can be read.
        let view = client.view(&query)?;
        let mut terminal = ratatui::try_init().context("preparing the terminal")?;
        let shown = show(
            &mut terminal,
            &client,
            Screen::new(query, view),
            self.interval.0,
        );
        ratatui::restore();
        shown.map(|()| ExitCode::SUCCESS)
    }
}

/// Shows the view until the user ends it.
fn show(
    terminal: &mut ratatui::DefaultTerminal,
    client: &Client,
    mut screen: Screen,
    interval: Duration,
) -> anyhow::Result<()> {
    // Shorter ones would show nothing new, because IPVS counts every 2 s.
    let interval = interval.max(Duration::from_millis(500));
    let mut looked = Instant::now();
    loop {
        terminal.draw(|frame| draw::draw(frame, &mut screen))?;
        let wait = interval.saturating_sub(looked.elapsed());
        let mut is_due = wait.is_zero();
        if event::poll(wait)? {
            let reaction = match event::read()? {
                Event::Key(key) => screen.press(key),
                _ => Reaction::Draw,
            };
            match reaction {
                Reaction::Quit => return Ok(()),
                Reaction::Look => is_due = true,
                Reaction::Draw => {}
            }
        }
        if is_due {
            screen.receive(client.view(screen.query()));
            looked = Instant::now();
        }
    }
}
