//! Integration tests: one binary, a mod for each kind. The list is the index; tests/README.md says what belongs where.

mod chat;
mod check;
mod cli;
mod configs;
mod corpus;
mod damage;
mod determinism;
mod even;
mod faults;
mod golden;
mod locate;
mod memory;
mod oracle;
mod packing;
mod properties;
mod proxy;
mod reconfigure;
mod regressions;
mod remote;
mod resume;
mod s3;
mod seaweed;
mod server;
mod skip;
mod storage;
mod store;
