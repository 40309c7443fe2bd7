//! Sends ten messages and consumes them, with the RocketMQ client for Rust.
//!
//! cargo run -- 127.0.0.1:18081,127.0.0.1:18082,127.0.0.1:18083 hello
//!
//! It has no push consumer, and retries nothing: the program does.

use std::collections::HashSet;
use std::error::Error;
use std::time::{Duration, Instant};

use rocketmq::conf::{ClientOption, ProducerOption, SimpleConsumerOption};
use rocketmq::model::common::{FilterExpression, FilterType};
use rocketmq::model::message::MessageBuilder;
use rocketmq::{Producer, SimpleConsumer};

const MESSAGES: usize = 10;
const ATTEMPTS: u32 = 10;

fn options(endpoints: &str) -> ClientOption {
    let mut option = ClientOption::default();
    option.set_access_url(endpoints);
    option.set_enable_tls(false);
    option
}

/// Each attempt is a message of its own: one that failed here may be stored all the same.
async fn send(producer: &Producer, topic: &str, body: &str) -> Result<(), Box<dyn Error>> {
    for attempt in 1.. {
        let bytes = body.as_bytes().to_vec();
        let message = MessageBuilder::builder().set_topic(topic).set_body(bytes).build()?;
        match producer.send(message).await {
            Ok(_) => break,
            Err(error) if attempt == ATTEMPTS => return Err(Box::new(error)),
            Err(_) => tokio::time::sleep(Duration::from_millis(100) * attempt).await,
        }
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let (endpoints, topic) = (&arguments[1], &arguments[2]);
    let mut producing = ProducerOption::default();
    producing.set_topics(vec![topic.as_str()]);
    let mut producer = Producer::new(producing, options(endpoints))?;
    producer.start().await?;
    let mut consuming = SimpleConsumerOption::default();
    consuming.set_topics(vec![topic.as_str()]);
    consuming.set_consumer_group(format!("{topic}-readers"));
    let mut consumer = SimpleConsumer::new(consuming, options(endpoints))?;
    consumer.start().await?;

    for number in 0..MESSAGES {
        send(&producer, topic, &format!("hello {number}")).await?;
    }
    let filter = FilterExpression::new(FilterType::Tag, "*");
    let mut bodies = HashSet::new();
    let begun = Instant::now();
    while bodies.len() < MESSAGES {
        if begun.elapsed() > Duration::from_secs(60) {
            return Err("they did not come".into());
        }
        let Ok(messages) = consumer.receive(topic.as_str(), &filter).await else {
            continue; // nothing new is an error, too
        };
        for message in &messages {
            let body = String::from_utf8_lossy(message.body()).to_string();
            println!("{body}");
            bodies.insert(body);
            consumer.ack(message).await?;
        }
    }
    Ok(())
}
