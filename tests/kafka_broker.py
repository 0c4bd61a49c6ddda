"""A real Kafka broker in KRaft mode for tests: the fixture ``kafka`` and what a user would do with a broker.

The jars come from ``make jars``. Where they are missing the tests are skipped with the reason; with ``CI=true`` they
fail instead, so that nobody believes they ran.
"""

from __future__ import annotations

import os
import tempfile
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from daemons import Daemon, free_port
from tamis.spark.jars import jars_in

JARS = Path(__file__).resolve().parent.parent / ".cache" / "jars"
HEAP = "512m"


class Record(NamedTuple):
    """One record as a client sees it."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None


def missing(what: str) -> None:
    """Skip the test because ``what`` is missing; fail it in CI, where nothing may be missing."""
    if os.environ.get("CI", "").lower() in ("1", "true", "yes"):
        pytest.fail(f"{what} (with CI=true that is a failure)", pytrace=False)
    pytest.skip(what)


def connector_jars() -> list[str]:
    """Spark's Kafka connector; empty when ``make jars`` could not bring it."""
    return jars_in(JARS / "connector")


def need_jars(name: str) -> list[str]:
    """The jars of ``connector`` or ``broker``, or no test."""
    jars = jars_in(JARS / name)
    if not jars:
        failed = JARS / f"{name}.failed"
        missing(f"no Kafka jars: {failed.read_text().strip() if failed.exists() else 'make jars was not run'}")
    return jars


def scala_library() -> str:
    """Spark's copy: Spark's resolver never fetches the Scala library."""
    import pyspark

    (library,) = (Path(pyspark.__file__).parent / "jars").glob("scala-library-2.13.*.jar")
    return str(library)


class Broker:
    """One node that is broker and controller. ``stop(keep=True)`` and ``start()`` again make it a restart."""

    def __init__(self, jars: list[str], directory: Path) -> None:
        self.port, controller = free_port(), free_port()
        self.servers = f"127.0.0.1:{self.port}"
        self._daemon = Daemon(directory, signal="KILL")
        java = Path(os.environ["JAVA_HOME"], "bin", "java") if os.environ.get("JAVA_HOME") else "java"
        self._java = [str(java), "-Xms64m", f"-Xmx{HEAP}", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        self._java += ["-cp", os.pathsep.join([*jars, scala_library()])]
        self._properties = str(directory / "server.properties")
        settings = {
            "process.roles": "broker,controller",
            "node.id": 1,
            "listeners": f"PLAINTEXT://{self.servers},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"PLAINTEXT://{self.servers}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "log.dirs": directory / "data",
            "offsets.topic.replication.factor": 1,
            "offsets.topic.num.partitions": 1,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "transaction.state.log.num.partitions": 1,
            "group.initial.rebalance.delay.ms": 0,
            "auto.create.topics.enable": "false",
            # A killed broker that comes back has to wait until its old self is given up.
            "broker.heartbeat.interval.ms": 300,
            "broker.session.timeout.ms": 2000,
        }
        Path(self._properties).write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        cluster = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        options = [f"--cluster-id={cluster}", "-c", self._properties]  # with =, as an id may begin with a dash
        self._daemon.run([*self._java, "kafka.tools.StorageTool", "format", *options])

    def start(self) -> None:
        """Start the broker and wait until it lists its topics."""
        self._daemon.start([*self._java, "kafka.Kafka", self._properties], self._answers)

    def stop(self, keep: bool = False) -> None:
        """Kill the broker; its data stay for another start when ``keep``."""
        self._daemon.stop(keep)

    def _answers(self) -> bool:
        from confluent_kafka import KafkaException

        try:
            return bool(self._admin().list_topics(timeout=1).brokers)
        except KafkaException:
            return False

    def _admin(self) -> Any:
        from confluent_kafka.admin import AdminClient

        return AdminClient({"bootstrap.servers": self.servers, "log_level": 0})

    def create(self, topic: str, partitions: int = 1) -> str:
        """A new topic; its name is made unique, so that tests may share a broker."""
        from confluent_kafka.admin import NewTopic

        name = f"{topic}-{uuid.uuid4().hex[:8]}"
        admin = self._admin()  # its futures fail when it is collected before them
        for future in admin.create_topics([NewTopic(name, partitions, 1)]).values():
            future.result(timeout=30)
        return name

    def produce(self, topic: str, records: Iterable[tuple[bytes | str | None, bytes | str | None]]) -> int:
        """Send (key, value) pairs and wait until the broker has them; returns how many."""
        from confluent_kafka import Producer

        producer, failures, count = Producer({"bootstrap.servers": self.servers}), list[str](), 0

        def delivered(error: object, _: object) -> None:
            if error is not None:
                failures.append(str(error))

        for key, value in records:
            producer.produce(topic, value=value, key=key, on_delivery=delivered)
            producer.poll(0)
            count += 1
        if producer.flush(30) or failures:
            raise RuntimeError(f"{topic}: {failures[:3] or 'records still queued after 30 s'}")
        return count

    def consume(self, topic: str, committed: bool = True) -> list[Record]:
        """Every record that the topic holds now, by partition and offset; ``committed`` hides open transactions."""
        from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

        settings = {
            "bootstrap.servers": self.servers,
            "group.id": f"test-{uuid.uuid4().hex}",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed" if committed else "read_uncommitted",
        }
        consumer, found = Consumer(settings), list[Record]()
        try:
            partitions = consumer.list_topics(topic, timeout=10).topics[topic].partitions
            consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in partitions])
            reading, end = set(partitions), time.monotonic() + 60
            while reading:
                if time.monotonic() > end:
                    raise RuntimeError(f"{topic}: the end of partitions {sorted(reading)} not reached in 60 s")
                for message in consumer.consume(10_000, timeout=0.2):
                    if message.error() is None:
                        found.append(Record(message.partition(), message.offset(), message.key(), message.value()))
                    elif message.error().code() == KafkaError._PARTITION_EOF:
                        reading.discard(message.partition())
                    else:
                        raise RuntimeError(str(message.error()))
        finally:
            consumer.close()
        return sorted(found, key=lambda record: record[:2])


@pytest.fixture(scope="session")
def kafka() -> Iterator[Broker]:
    """A running broker, shared by the tests of one process; topics are made per test."""
    jars = need_jars("broker")
    need_jars("connector")
    broker = Broker(jars, Path(tempfile.mkdtemp(prefix="tamis-kafka-")))
    broker.start()
    yield broker
    broker.stop()
