//! One job in the guest: its process, and the threads that copy its input and output.

use std::{
    env,
    ffi::{OsStr, OsString},
    fs::File,
    io::{self, ErrorKind, Read, Write},
    os::{
        fd::OwnedFd,
        unix::process::{CommandExt, ExitStatusExt},
    },
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::mpsc::{self, Receiver, Sender},
    thread,
};

use anyhow::{Context, Result, anyhow};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open},
    pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt},
    termios::{Winsize, tcsetwinsize},
};

use super::{ROLE, SESSION, agent::Line};
use crate::{
    job::{Job, TerminalSize},
    wire::{CHUNK, Frame, Kind},
};

/// A running job.
#[derive(Debug)]
pub(super) struct Running {
    group: Pid,
    input: Sender<Vec<u8>>,
    terminal: Option<OwnedFd>,
}

/// Why a job was not started, with the exit status that a shell would report.
#[derive(Debug)]
pub(super) struct Refused {
    pub(super) error: anyhow::Error,
    pub(super) status: u32,
}

/// The agent's ends of the pipes or the terminal of a job.
struct Streams {
    input: File,
    outputs: Vec<(Kind, File)>,
    terminal: Option<OwnedFd>,
}

impl Running {
    /// Starts `job`, and threads that report to the host until it has ended.
    pub(super) fn start(id: u32, job: &Job, line: &Line) -> Result<Self, Refused> {
        let (child, streams) = spawn(job)?;
        let running = Self::attend(id, child, streams, line);
        running.map_err(|error| Refused { error, status: 126 })
    }

    fn attend(id: u32, child: Child, streams: Streams, line: &Line) -> Result<Self> {
        let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let group = group.context("a process without an id")?;
        let exited = pidfd_open(group, PidfdFlags::empty()).context("watching the process")?;
        let (input, incoming) = mpsc::channel();
        let (to_host, feed) = (line.clone(), streams.input);
        thread::spawn(move || take_input(id, feed, &incoming, &to_host));
        let (to_host, outputs) = (line.clone(), streams.outputs);
        thread::spawn(move || {
            // A broken line ends the machine; the agent notices it too.
            let _broken = carry_output(id, child, group, &exited, outputs, &to_host);
        });
        Ok(Self {
            group,
            input,
            terminal: streams.terminal,
        })
    }

    /// Queues input; an empty piece is the end of the input. The host limits how much is queued.
    pub(super) fn feed(&self, piece: Vec<u8>) {
        // A job that no longer reads loses its input, as with a closed pipe.
        let _ended = self.input.send(piece);
    }

    /// Gives the terminal a new size.
    pub(super) fn resize(&self, size: &[u8]) {
        if let (Some(terminal), Some(size)) = (&self.terminal, TerminalSize::decode(size)) {
            // Fails only if the job has ended.
            let _gone = tcsetwinsize(terminal, winsize(size));
        }
    }

    /// Kills all processes of the job.
    pub(super) fn kill(&self) {
        let _gone = kill_process_group(self.group, Signal::KILL);
    }
}

/// Writes input to the job, and reports to the host how much the job has read.
fn take_input(id: u32, feed: File, incoming: &Receiver<Vec<u8>>, line: &Line) {
    let mut feed = Some(feed);
    while let Ok(piece) = incoming.recv() {
        let Some(open) = feed.as_mut().filter(|_| !piece.is_empty()) else {
            feed = None;
            continue;
        };
        if open.write_all(&piece).is_err() {
            feed = None;
        }
        let length = u32::try_from(piece.len()).unwrap_or(u32::MAX);
        let taken = Frame::new(id, Kind::Taken, length.to_le_bytes());
        if line.send(&taken).is_err() {
            return;
        }
    }
}

/// Sends the job's output, then its exit status.
fn carry_output(
    id: u32,
    mut child: Child,
    group: Pid,
    exited: &OwnedFd,
    mut outputs: Vec<(Kind, File)>,
    line: &Line,
) -> io::Result<()> {
    let mut is_over = false;
    loop {
        let mut watched: Vec<PollFd<'_>> = outputs
            .iter()
            .map(|(_, output)| PollFd::new(output, PollFlags::IN))
            .collect();
        watched.push(PollFd::new(exited, PollFlags::IN));
        let no_time = Timespec::default();
        match poll(&mut watched, is_over.then_some(&no_time)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let mut ready: Vec<bool> = watched.iter().map(|fd| !fd.revents().is_empty()).collect();
        drop(watched);
        let has_exited = ready.pop() == Some(true);

        // When the job has exited, all its output is in the pipes. The agent does not wait for
        // output of its orphans, because they may run for ever.
        if is_over && !ready.contains(&true) {
            break;
        }
        is_over = has_exited;
        let mut open = Vec::new();
        for ((kind, mut output), is_ready) in outputs.into_iter().zip(ready) {
            if !is_ready || forward(id, kind, &mut output, line)? {
                open.push((kind, output));
            }
        }
        outputs = open;
    }
    // The group still exists, because its leader was not waited for yet.
    let _none_left = kill_process_group(group, Signal::KILL);
    let status = child.wait()?;
    let status = match (status.code(), status.signal()) {
        (Some(code), _) => code.unsigned_abs(),
        (None, Some(signal)) => 128 + signal.unsigned_abs(),
        (None, None) => 255,
    };
    // The host may read the job's files as soon as it knows that the job has ended.
    rustix::fs::sync();
    line.send(&Frame::new(id, Kind::Exit, status.to_le_bytes()))
}

/// Sends one piece of the output; returns `false` at the end of the output.
fn forward(id: u32, kind: Kind, output: &mut File, line: &Line) -> io::Result<bool> {
    let mut piece = vec![0; CHUNK];
    match output.read(&mut piece) {
        Ok(0) => Ok(false),
        Ok(length) => {
            piece.truncate(length);
            line.send(&Frame::new(id, kind, piece))?;
            Ok(true)
        }
        Err(error) if error.kind() == ErrorKind::Interrupted => Ok(true),
        // EIO: no process has the terminal open any more.
        Err(_) => Ok(false),
    }
}

fn spawn(job: &Job) -> Result<(Child, Streams), Refused> {
    let name = &job.argv[0];
    let program = find(job, name).ok_or_else(|| Refused {
        error: anyhow!("{}: command not found", name.display()),
        status: 127,
    })?;
    let spawned = match job.terminal {
        None => spawn_with_pipes(job, &program),
        Some(size) => spawn_with_terminal(job, &program, size),
    };
    spawned.map_err(|error| Refused {
        error: error.context(name.display().to_string()),
        status: 126,
    })
}

fn spawn_with_pipes(job: &Job, program: &Path) -> Result<(Child, Streams)> {
    let mut child = command(job, program)
        .arg0(&job.argv[0])
        .args(&job.argv[1..])
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let (Some(stdin), Some(stdout), Some(stderr)) =
        (child.stdin.take(), child.stdout.take(), child.stderr.take())
    else {
        return Err(anyhow!("a process without pipes"));
    };
    let streams = Streams {
        input: OwnedFd::from(stdin).into(),
        outputs: vec![
            (Kind::Stdout, OwnedFd::from(stdout).into()),
            (Kind::Stderr, OwnedFd::from(stderr).into()),
        ],
        terminal: None,
    };
    Ok((child, streams))
}

fn spawn_with_terminal(job: &Job, program: &Path, size: TerminalSize) -> Result<(Child, Streams)> {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let master = openpt(flags).context("making a terminal")?;
    unlockpt(&master)?;
    tcsetwinsize(&master, winsize(size))?;
    let user = ioctl_tiocgptpeer(&master, flags)?;
    let session = env::current_exe().context("finding this program")?;
    let child = command(job, &session)
        .env(ROLE, SESSION)
        .arg(program)
        .args(&job.argv[1..])
        .stdin(user.try_clone()?)
        .stdout(user.try_clone()?)
        .stderr(user)
        .spawn()?;
    let streams = Streams {
        input: master.try_clone()?.into(),
        outputs: vec![(Kind::Stdout, master.try_clone()?.into())],
        terminal: Some(master),
    };
    Ok((child, streams))
}

fn command(job: &Job, program: &Path) -> Command {
    let mut command = Command::new(program);
    command
        .env_clear()
        .envs(job.env.iter().map(|(name, value)| (name, value)))
        .current_dir(&job.cwd);
    command
}

/// Finds the program `name` by the job's directory and `PATH`.
fn find(job: &Job, name: &OsStr) -> Option<PathBuf> {
    if name.as_encoded_bytes().contains(&b'/') {
        let path = Path::new(&job.cwd).join(name);
        return path.exists().then_some(path);
    }
    let path = job
        .var("PATH")
        .map_or_else(|| OsString::from(DEFAULT_PATH), OsStr::to_owned);
    env::split_paths(&path)
        .map(|directory| Path::new(&job.cwd).join(directory).join(name))
        .find(|candidate| candidate.is_file())
}

fn winsize(size: TerminalSize) -> Winsize {
    Winsize {
        ws_row: size.rows,
        ws_col: size.columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    }
}

/// The directories that a shell searches without `PATH`.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
