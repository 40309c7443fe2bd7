//! Messages of each type, with the RocketMQ client for Rust: sends some, and consumes them.
//!
//! dledger topic create transfers --type FIFO --endpoint 127.0.0.1:18281
//! cargo run --bin message_types -- 127.0.0.1:18081 transfers fifo
//!
//! Beside fifo there are delay and transaction, for topics of these types; sql and dead, for NORMAL
//! ones. The client has no priorities, and cannot recall a message. It retries nothing: the program
//! does.

use std::collections::{HashMap, HashSet};
use std::error::Error;
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rocketmq::conf::{ClientOption, ProducerOption, SimpleConsumerOption};
use rocketmq::error::{ClientError, ErrorKind};
use rocketmq::model::common::{FilterExpression, FilterType};
use rocketmq::model::message::MessageBuilder;
use rocketmq::model::transaction::{Transaction, TransactionChecker, TransactionResolution};
use rocketmq::{Producer, SimpleConsumer};

const PATIENCE: Duration = Duration::from_secs(60);
const INVISIBLE: Duration = Duration::from_secs(30);

type Done = Result<(), Box<dyn Error>>;

struct Program {
    endpoints: String,
    topic: String,
    group: String,
}

impl Program {
    /// Messages of a message group come in the order in which they were sent.
    async fn fifo(&self) -> Done {
        let producer = self.producer(None).await?;
        for number in 0..5 {
            for account in ["ada", "bob"] {
                let text = format!("{account} {number}");
                let message = || self.message(&text).set_message_group(account).build();
                // before the next one of its group is sent
                tried(|| async { producer.send(message()?).await }).await?;
            }
        }
        self.consume(&self.topic, 10, &everything()).await
    }

    /// A message comes at its time.
    async fn delay(&self) -> Done {
        let producer = self.producer(None).await?;
        let due_s = now_ms() / 1000 + 3; // in seconds
        let message = || self.message("reminder").set_delivery_timestamp(due_s).build();
        tried(|| async { producer.send(message()?).await }).await?;
        self.consume(&self.topic, 1, &everything()).await
    }

    /// A message comes if its transaction is committed, by its producer or by its checker.
    async fn transaction(&self) -> Done {
        let paid = Arc::new(Mutex::new(HashSet::new())); // a table of your database
        let asked = paid.clone();
        let checker: Box<TransactionChecker> = Box::new(move |_, message| {
            match asked.lock().unwrap().contains(message.message_id()) {
                true => TransactionResolution::COMMIT,
                false => TransactionResolution::ROLLBACK,
            }
        });
        let producer = self.producer(Some(checker)).await?;

        let order = self.begun(&producer, "paid").await?;
        // commit your own transaction, with the id in it
        paid.lock().unwrap().insert(order.message_id().to_string());
        if let Err(error) = order.commit().await {
            eprintln!("the checker is asked, and says the same: {error}");
        }

        let declined = self.begun(&producer, "declined").await?;
        if let Err(error) = declined.rollback().await {
            eprintln!("the checker is asked, and says the same: {error}");
        }

        let open = self.begun(&producer, "paid, and left open").await?;
        // the checker is asked 6 s later
        paid.lock().unwrap().insert(open.message_id().to_string());
        self.consume(&self.topic, 2, &everything()).await
    }

    /// Sends a message in a transaction; one that is tried again is in another transaction.
    async fn begun(
        &self,
        producer: &Producer,
        text: &str,
    ) -> Result<impl Transaction, ClientError> {
        let message = || self.message(text).enable_transaction().build();
        tried(|| async { producer.send_transaction_message(message()?).await }).await
    }

    /// A consumer gets what matches its filter.
    async fn sql(&self) -> Done {
        let producer = self.producer(None).await?;
        for price in [5, 25, 15, 35, 12] {
            let text = format!("price {price}");
            let properties = || HashMap::from([("price", price.to_string())]);
            let message = || self.message(&text).set_properties(properties()).build();
            tried(|| async { producer.send(message()?).await }).await?;
        }
        let filter = FilterExpression::new(FilterType::Sql, "price BETWEEN 10 AND 20");
        self.consume(&self.topic, 2, &filter).await
    }

    /// What is not acknowledged is a dead letter after the attempts that its consumer group has:
    /// 17, unless it has other numbers, by `dledger group set NAME --max-attempts 2`.
    async fn dead(&self) -> Done {
        let producer = self.producer(None).await?;
        let message = || self.message("unreadable").build();
        tried(|| async { producer.send(message()?).await }).await?;
        let consumer = self.consumer(&self.topic).await?;
        let (all, second) = (everything(), Duration::from_secs(1));
        while !tried(|| consumer.receive_with(&self.topic, &all, 1, second)).await?.is_empty() {
            // not acknowledged within a second, it comes again, until it is moved
        }
        self.consume(&format!("%DLQ%{}", self.group), 1, &all).await
    }

    fn message(&self, text: &str) -> MessageBuilder {
        MessageBuilder::builder().set_topic(&self.topic).set_body(text.as_bytes().to_vec())
    }

    /// Prints and acknowledges so many messages, one by one, so that their order is seen.
    async fn consume(&self, topic: &str, count: usize, filter: &FilterExpression) -> Done {
        let consumer = self.consumer(topic).await?;
        let begun = Instant::now();
        let mut got = 0;
        while got < count {
            if begun.elapsed() > PATIENCE {
                return Err("they did not come".into());
            }
            for message in tried(|| consumer.receive_with(topic, filter, 1, INVISIBLE)).await? {
                let late = match message.delivery_timestamp() {
                    Some(due_s) => format!(", {} ms after its time", now_ms() - due_s * 1000),
                    None => String::new(),
                };
                println!("{}{late}", String::from_utf8_lossy(message.body()));
                tried(|| consumer.ack(&message)).await?;
                got += 1;
            }
        }
        Ok(())
    }

    fn options(&self) -> ClientOption {
        let mut option = ClientOption::default();
        option.set_access_url(&self.endpoints);
        option.set_enable_tls(false);
        option.set_long_polling_timeout(Duration::from_secs(5));
        option
    }

    async fn producer(
        &self,
        checker: Option<Box<TransactionChecker>>,
    ) -> Result<Producer, ClientError> {
        let mut option = ProducerOption::default();
        option.set_topics(vec![&self.topic]);
        let mut producer = match checker {
            Some(checker) => Producer::new_transaction_producer(option, self.options(), checker)?,
            None => Producer::new(option, self.options())?,
        };
        producer.start().await?;
        Ok(producer)
    }

    async fn consumer(&self, topic: &str) -> Result<SimpleConsumer, ClientError> {
        let mut option = SimpleConsumerOption::default();
        option.set_consumer_group(&self.group);
        option.set_topics(vec![topic]);
        let mut consumer = SimpleConsumer::new(option, self.options())?;
        consumer.start().await?;
        Ok(consumer)
    }
}

fn everything() -> FilterExpression {
    FilterExpression::new(FilterType::Tag, "*")
}

fn now_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as i64)
}

/// Calls until that does not fail; a refusal is final, as it would be the same the next time.
///
/// What failed may have been done all the same: a message that is sent again is another one, of
/// which a reader may get both.
async fn tried<T, F, R>(call: F) -> Result<T, ClientError>
where
    F: Fn() -> R,
    R: Future<Output = Result<T, ClientError>>,
{
    let begun = Instant::now();
    loop {
        match call().await {
            Err(error) if !is_refused(&error) && begun.elapsed() < PATIENCE => {
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
            done => return done,
        }
    }
}

/// Tells what the client or the group has decided from what could not be done, or not yet.
fn is_refused(error: &ClientError) -> bool {
    let may_be_repeated = ["HA_NOT_AVAILABLE", "PROXY_TIMEOUT", "TOO_MANY_REQUESTS"];
    let code = error.context().iter().find(|(key, _)| *key == "code");
    match code {
        Some((_, code)) => !may_be_repeated.contains(&code.as_str()),
        None => *error.kind() == ErrorKind::InvalidMessage,
    }
}

#[tokio::main]
async fn main() -> Done {
    let mut arguments = std::env::args().skip(1);
    let mut next = || arguments.next().ok_or("ENDPOINTS TOPIC TYPE");
    let (endpoints, topic, name) = (next()?, next()?, next()?);
    let group = format!("{topic}-readers");
    let program = Program { endpoints, topic, group };
    match name.as_str() {
        "fifo" => program.fifo().await,
        "delay" => program.delay().await,
        "transaction" => program.transaction().await,
        "sql" => program.sql().await,
        "dead" => program.dead().await,
        other => Err(format!("the client has nothing for {other}").into()),
    }
}
