//! The state of the terminal view, and what keys do to it.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use crate::cluster::model::ObjectName;
use crate::observe::overview::model::Overview;
use crate::observe::overview::{Query, Sort};

/// What follows a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reaction {
    /// The view ends.
    Quit,
    /// Another part is needed at once.
    Look,
    /// Only the picture changes.
    Draw,
}

/// The state of the view.
#[derive(Debug)]
pub(super) struct Screen {
    query: Query,
    pub(super) view: Overview,
    /// The row of Services with the cursor.
    pub(super) cursor: usize,
    /// The first line of the endpoints that is shown.
    pub(super) scroll: usize,
    /// Whether keys edit the filter.
    pub(super) is_typing: bool,
    /// Why the last look failed.
    pub(super) failure: Option<String>,
    /// The number of Services that fit, as last drawn.
    pub(super) height: usize,
}

impl Screen {
    pub(super) fn new(query: Query, view: Overview) -> Self {
        Self {
            query,
            view,
            cursor: 0,
            scroll: 0,
            is_typing: false,
            failure: None,
            height: 1,
        }
    }

    pub(super) fn query(&self) -> &Query {
        &self.query
    }

    /// Takes another view, or notes why there is none. The last one stays then.
    pub(super) fn receive(&mut self, view: anyhow::Result<Overview>) {
        match view {
            Ok(view) => {
                self.view = view;
                self.failure = None;
            }
            Err(error) => self.failure = Some(format!("{error:#}")),
        }
        let rows = self.view.services.rows.len();
        self.cursor = self.cursor.min(rows.saturating_sub(1));
    }

    pub(super) fn press(&mut self, key: KeyEvent) -> Reaction {
        if key.kind == KeyEventKind::Release {
            return Reaction::Draw;
        }
        let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
        if is_control && key.code == KeyCode::Char('c') {
            return Reaction::Quit;
        }
        match self.is_typing {
            true => self.edit(key.code),
            false => self.command(key.code),
        }
    }

    fn edit(&mut self, key: KeyCode) -> Reaction {
        match key {
            KeyCode::Enter => self.is_typing = false,
            KeyCode::Esc => {
                self.is_typing = false;
                self.query.filter.clear();
            }
            KeyCode::Backspace => _ = self.query.filter.pop(),
            KeyCode::Char(letter) => self.query.filter.extend(letter.to_lowercase()),
            _ => return Reaction::Draw,
        }
        self.restart()
    }

    fn command(&mut self, key: KeyCode) -> Reaction {
        let last = self.view.services.rows.len().saturating_sub(1);
        match key {
            KeyCode::Char('q') => return Reaction::Quit,
            KeyCode::Esc if self.query.service.is_none() => return Reaction::Quit,
            KeyCode::Esc => self.query.service = None,
            KeyCode::Char('/') => {
                self.is_typing = true;
                return Reaction::Draw;
            }
            KeyCode::Char('s') => {
                let place = Sort::ALL.iter().position(|sort| *sort == self.query.sort);
                let next = place.map_or(0, |place| (place + 1) % Sort::ALL.len());
                self.query.sort = Sort::ALL[next];
                return self.restart();
            }
            KeyCode::Char('w') => {
                self.query.only_wrong = !self.query.only_wrong;
                return self.restart();
            }
            KeyCode::Enter => self.expand(),
            KeyCode::Down | KeyCode::Char('j') if self.cursor < last => {
                self.cursor += 1;
                return Reaction::Draw;
            }
            KeyCode::Down | KeyCode::Char('j') | KeyCode::PageDown => self.turn_forward(),
            KeyCode::Up | KeyCode::Char('k') if self.cursor > 0 => {
                self.cursor -= 1;
                return Reaction::Draw;
            }
            KeyCode::Up | KeyCode::Char('k') | KeyCode::PageUp => self.turn_back(),
            KeyCode::Right => {
                self.scroll += 5;
                return Reaction::Draw;
            }
            KeyCode::Left => {
                self.scroll = self.scroll.saturating_sub(5);
                return Reaction::Draw;
            }
            _ => return Reaction::Draw,
        }
        Reaction::Look
    }

    /// Expands the Service with the cursor, or hides it.
    fn expand(&mut self) {
        let row = self.view.services.rows.get(self.cursor);
        let service = row.map(|row| ObjectName::new(&row.namespace, &row.name));
        self.scroll = 0;
        self.query.service = match self.query.service == service {
            true => None,
            false => service,
        };
    }

    /// Begins with the first Service again.
    fn restart(&mut self) -> Reaction {
        self.query.first = 0;
        self.cursor = 0;
        Reaction::Look
    }

    fn turn_forward(&mut self) {
        let list = &self.view.services;
        let next = list.first + list.rows.len();
        if next < list.matching {
            self.query.first = next;
            self.cursor = 0;
        }
    }

    fn turn_back(&mut self) {
        let first = self.query.first;
        self.query.first = first.saturating_sub(self.height);
        self.cursor = 0;
    }

    /// Notes that so many Services fit. The next look asks for that many.
    pub(super) fn fit(&mut self, height: usize) {
        self.height = height.max(1);
        self.query.rows = self.height;
    }
}
