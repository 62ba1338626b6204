//! The steps of a build, with a log and progress on stderr.

use std::{
    fs::{File, OpenOptions},
    io::{BufRead, BufReader, IsTerminal, Write, pipe, stderr},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process_group};
use signal_hook::{
    SigId,
    consts::{SIGHUP, SIGINT, SIGTERM},
    flag, low_level,
};

/// Runs the steps of one build.
#[derive(Debug)]
pub(super) struct Steps {
    begin: Instant,
    log: PathBuf,
    is_interrupted: Arc<AtomicBool>,
    handlers: Vec<SigId>,
}

impl Steps {
    /// Begins a build that writes to `log`.
    ///
    /// Until this is dropped, Ctrl-C ends the running step and not the process, so the caller can
    /// clean up.
    pub(super) fn begin(log: &Path) -> Result<Self> {
        File::create(log).with_context(|| format!("writing to {}", log.display()))?;
        let is_interrupted = Arc::new(AtomicBool::new(false));
        let handlers = [SIGHUP, SIGINT, SIGTERM]
            .into_iter()
            .map(|signal| flag::register(signal, Arc::clone(&is_interrupted)))
            .collect::<Result<_, _>>()
            .context("registering signal handlers")?;
        Ok(Self {
            begin: Instant::now(),
            log: log.to_owned(),
            is_interrupted,
            handlers,
        })
    }

    /// Runs one step, called `name`.
    ///
    /// # Errors
    ///
    /// If the step fails, with the end of the log; if it is interrupted.
    pub(super) fn run(&self, name: &str, command: &mut Command) -> Result<()> {
        let log = OpenOptions::new().append(true).open(&self.log);
        let log = log.with_context(|| format!("writing to {}", self.log.display()))?;
        let (output, input) = pipe().context("making a pipe")?;
        let child = command
            .stdin(Stdio::null())
            .stdout(input.try_clone().context("copying a pipe")?)
            .stderr(input)
            .process_group(0)
            .spawn();
        let program = command.get_program().display().to_string();
        // The command holds copies of the writing end; the reader waits until they are closed.
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let child = child.with_context(|| format!("{name}: starting {program}"))?;

        let objects = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&objects);
        let copy = thread::spawn(move || copy(BufReader::new(output), log, &counter));
        let status = self.watch(name, child, &objects)?;
        // If only writing to the log failed, the step has succeeded.
        let _copied = copy.join();
        if !status.success() {
            bail!(
                "{name} failed ({status}); the log is {}, and ends with\n{}",
                self.log.display(),
                tail(&self.log)
            );
        }
        Ok(())
    }

    fn watch(&self, name: &str, mut child: Child, objects: &AtomicUsize) -> Result<ExitStatus> {
        let is_terminal = stderr().is_terminal();
        let period = if is_terminal { REDRAW } else { REPORT };
        let mut printed = None;
        let status = loop {
            if let Some(status) = child.try_wait().context("waiting for a step")? {
                break status;
            }
            if self.is_interrupted.load(Ordering::Relaxed) {
                if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
                    let _gone = kill_process_group(group, Signal::KILL);
                }
                child.wait().context("waiting for a step")?;
                bail!("{name} was interrupted; its files are deleted");
            }
            if printed.is_none_or(|printed: Instant| printed.elapsed() >= period) {
                self.print(name, objects, is_terminal);
                printed = Some(Instant::now());
            }
            thread::sleep(Duration::from_millis(100));
        };
        if is_terminal {
            self.print(name, objects, is_terminal);
            eprintln!();
        }
        Ok(status)
    }

    fn print(&self, name: &str, objects: &AtomicUsize, is_terminal: bool) {
        let line = line(name, objects.load(Ordering::Relaxed), self.begin.elapsed());
        let line = if is_terminal {
            format!("\r\x1b[K{line}")
        } else {
            line + "\n"
        };
        // A closed stderr does not stop the build.
        let _unseen = stderr().lock().write_all(line.as_bytes());
    }
}

impl Drop for Steps {
    fn drop(&mut self) {
        for handler in self.handlers.drain(..) {
            low_level::unregister(handler);
        }
    }
}

/// Writes every line to the log, and counts the lines in which make reports a compilation.
fn copy(output: impl BufRead, mut log: File, objects: &AtomicUsize) -> std::io::Result<()> {
    for line in output.split(b'\n') {
        let mut line = line?;
        if line.starts_with(b"  CC ") {
            objects.fetch_add(1, Ordering::Relaxed);
        }
        line.push(b'\n');
        log.write_all(&line)?;
    }
    Ok(())
}

fn line(name: &str, objects: usize, elapsed: Duration) -> String {
    let (minutes, seconds) = (elapsed.as_secs() / 60, elapsed.as_secs() % 60);
    let objects = match objects {
        0 => String::new(),
        count => format!(", {count} objects"),
    };
    format!("lab: {minutes}:{seconds:02} {name}{objects}")
}

fn tail(log: &Path) -> String {
    let text = std::fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    let last = &lines[lines.len().saturating_sub(SHOWN)..];
    let indented: Vec<String> = last.iter().map(|line| format!("  {line}")).collect();
    indented.join("\n")
}

/// The time between two updates on a terminal.
const REDRAW: Duration = Duration::from_secs(1);
/// The time between two lines if stderr is not a terminal.
const REPORT: Duration = Duration::from_secs(30);
/// Lines of the log in an error.
const SHOWN: usize = 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_logged_and_counted() {
        let directory = tempfile::tempdir().unwrap();
        let log = directory.path().join("log");
        let steps = Steps::begin(&log).unwrap();
        let script = "echo '  CC      init/main.o'; echo oops >&2";
        steps
            .run("compiling", Command::new("sh").args(["-c", script]))
            .unwrap();
        let text = std::fs::read_to_string(&log).unwrap();
        assert_eq!(text, "  CC      init/main.o\noops\n");
    }

    #[test]
    fn a_failed_step_shows_the_end_of_the_log() {
        let directory = tempfile::tempdir().unwrap();
        let steps = Steps::begin(&directory.path().join("log")).unwrap();
        let script = "seq 1 100; exit 2";
        let failed = steps.run("configuring", Command::new("sh").args(["-c", script]));
        let words = failed.unwrap_err().to_string();
        assert!(words.starts_with("configuring failed"), "{words}");
        assert!(words.ends_with("\n  99\n  100"), "{words}");
        assert!(!words.contains("  80\n"), "{words}");
    }

    #[test]
    fn a_line_has_time_name_and_objects() {
        let elapsed = Duration::from_secs(187);
        assert_eq!(line("unpacking", 0, elapsed), "lab: 3:07 unpacking");
        assert_eq!(
            line("compiling", 12, elapsed),
            "lab: 3:07 compiling, 12 objects"
        );
    }
}
