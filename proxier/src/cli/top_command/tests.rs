//! The terminal view of the example, and keys.

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::draw::draw;
use super::screen::{Reaction, Screen};
use crate::observe::overview::tests::example;
use crate::observe::overview::{Query, Sort, text};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/top.md");

/// Returns what a terminal of this size shows.
fn shown(screen: &mut Screen, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, screen)).unwrap();
    let buffer = terminal.backend().buffer();
    let cells: Vec<&str> = buffer.content.iter().map(|cell| cell.symbol()).collect();
    let lines = cells.chunks(width.into());
    lines
        .map(|line| line.concat().trim_end().to_owned() + "\n")
        .collect()
}

fn screen() -> Screen {
    let (query, view) = example();
    Screen::new(query, view)
}

/// Returns the documentation, and the same with these blocks of text.
fn documented(blocks: &[String]) -> (String, String) {
    let page = std::fs::read_to_string(PAGE).unwrap();
    let mut parts = page.split("```text\n");
    let mut made = parts.next().unwrap().to_owned();
    for (part, block) in parts.zip(blocks) {
        let (_, after) = part.split_once("```\n").unwrap();
        made += &format!("```text\n{block}```\n{after}");
    }
    (page, made)
}

/// `TOP_DOCUMENT=1 cargo test -p proxier --lib top_command` writes it anew.
#[test]
fn the_documentation_shows_the_view_as_it_is() {
    let (page, made) = documented(&[shown(&mut screen(), 130, 32), text::page(&example().1)]);
    if std::env::var_os("TOP_DOCUMENT").is_some() {
        std::fs::write(PAGE, &made).unwrap();
    } else {
        assert_eq!(page, made);
    }
}

#[test]
fn a_small_terminal_shows_a_part_without_a_failure() {
    for (width, height) in [(1, 1), (20, 5), (80, 10), (300, 4)] {
        shown(&mut screen(), width, height);
    }
}

#[test]
fn texts_of_objects_do_not_control_the_terminal() {
    let mut screen = screen();
    screen.view.head.node = "a\u{1b}[2Jb".to_owned();
    screen.view.services.rows[0].name = "c\u{9b}d\r".to_owned();
    screen.view.changes[0].change = "e\u{7}f".to_owned();
    let text = shown(&mut screen, 130, 27);
    assert!(
        !text.contains(|it: char| it.is_control() && it != '\n'),
        "{text:?}"
    );
    assert!(text.contains(r"a\u{1b}[2Jb"), "{text}");
}

fn press(screen: &mut Screen, code: KeyCode) -> Reaction {
    screen.press(KeyEvent::new(code, KeyModifiers::NONE))
}

#[test]
fn keys_move_sort_filter_expand_and_quit() {
    let mut screen = screen();
    shown(&mut screen, 130, 27);
    assert_eq!(screen.query().rows, screen.height);
    assert_eq!(press(&mut screen, KeyCode::Char('s')), Reaction::Look);
    assert_eq!(screen.query().sort, Sort::New);
    assert_eq!(press(&mut screen, KeyCode::Char('w')), Reaction::Look);
    assert!(screen.query().only_wrong);
    press(&mut screen, KeyCode::Char('/'));
    for key in "Webq".chars() {
        press(&mut screen, KeyCode::Char(key));
    }
    press(&mut screen, KeyCode::Backspace);
    press(&mut screen, KeyCode::Enter);
    assert_eq!(screen.query().filter, "web");
    press(&mut screen, KeyCode::Down);
    assert_eq!(screen.cursor, 1);
    press(&mut screen, KeyCode::Enter);
    let service = screen.query().service.as_ref().unwrap();
    assert_eq!(service.to_string(), "kube-system/dns");
    // The first escape hides the Service, the second ends the view.
    assert_eq!(press(&mut screen, KeyCode::Esc), Reaction::Look);
    assert_eq!(press(&mut screen, KeyCode::Esc), Reaction::Quit);
    let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    assert_eq!(screen.press(interrupt), Reaction::Quit);
}

#[test]
fn movement_beyond_the_rows_turns_the_page() {
    let mut screen = screen();
    screen.view.services.matching = 100;
    screen.height = 3;
    for _ in 0..2 {
        assert_eq!(press(&mut screen, KeyCode::Down), Reaction::Draw);
    }
    assert_eq!(press(&mut screen, KeyCode::Down), Reaction::Look);
    assert_eq!((screen.query().first, screen.cursor), (3, 0));
    assert_eq!(press(&mut screen, KeyCode::PageUp), Reaction::Look);
    assert_eq!(screen.query().first, 0);
}

/// While the process does not answer, the last view stays, and says so.
#[test]
fn a_failed_look_keeps_the_last_view() {
    let mut screen = screen();
    screen.receive(Err(anyhow::anyhow!("no answer")));
    let text = shown(&mut screen, 130, 27);
    assert!(
        text.contains("no answer") && text.contains("shop/web:http"),
        "{text}"
    );
    screen.receive(Ok(example().1));
    assert_eq!(screen.failure, None);
    assert_eq!(
        *screen.query(),
        Query {
            rows: screen.height,
            ..example().0
        }
    );
}
