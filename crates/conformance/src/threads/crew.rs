//! Threads that outlive schedules. Starting new ones for each schedule would cost more than most schedules do, and a thread that ends releases its resources at
//! a moment that the scheduler has not chosen.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{JoinHandle, Thread};

type Task = Box<dyn FnOnce() + Send>;

/// Some threads that wait for work.
pub(super) struct Crew {
    hands: Vec<(Sender<Task>, Thread)>,
    /// One message for each task that is done and dropped.
    done: Receiver<()>,
    handles: Vec<JoinHandle<()>>,
}

impl Crew {
    pub(super) fn new(size: usize) -> Self {
        let (tell, done) = channel();
        let (mut hands, mut handles) = (Vec::new(), Vec::new());
        for _ in 0..size {
            let (sender, tasks) = channel::<Task>();
            let tell = tell.clone();
            let handle = std::thread::spawn(move || {
                for task in tasks {
                    task();
                    // Without a receiver, no thread waits.
                    let _ = tell.send(());
                }
            });
            hands.push((sender, handle.thread().clone()));
            handles.push(handle);
        }
        Self { hands, done, handles }
    }

    /// Gives each of the first threads a task.
    /// # Panics
    /// If there are more tasks than threads, or a thread has died.
    pub(super) fn start(&self, tasks: Vec<Task>) -> Vec<Thread> {
        assert!(tasks.len() <= self.hands.len());
        let hands = self.hands.iter().zip(tasks);
        hands.map(|((sender, thread), task)| sender.send(task).map(|()| thread.clone()).expect("a thread of the crew waits for work")).collect()
    }

    /// Waits until this many tasks are done and their captures are dropped.
    pub(super) fn finish(&self, tasks: usize) {
        for _ in 0..tasks {
            self.done.recv().expect("the threads of the crew are there");
        }
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        self.hands.clear();
        for handle in self.handles.drain(..) {
            // A task that panics has been reported.
            let _ = handle.join();
        }
    }
}
