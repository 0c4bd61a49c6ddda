"""The database of the tests is a real one: transactions commit, roll back and collide."""

from __future__ import annotations

import psycopg
import pytest


def test_a_transaction_is_whole_or_nothing(postgres: str) -> None:
    with psycopg.connect(postgres) as connection:
        connection.execute("create table t (id int primary key)")
    with pytest.raises(psycopg.errors.UniqueViolation), psycopg.connect(postgres) as connection:
        connection.execute("insert into t values (1)")
        connection.execute("insert into t values (1)")
    with psycopg.connect(postgres) as connection:
        assert connection.execute("select count(*) from t").fetchone() == (0,)
        connection.execute("insert into t values (1), (2)")
    with psycopg.connect(postgres) as connection:
        assert connection.execute("select array_agg(id order by id) from t").fetchone() == ([1, 2],)


def test_every_test_has_a_database_of_its_own(postgres: str) -> None:
    with psycopg.connect(postgres) as connection:
        found = connection.execute("select count(*) from information_schema.tables where table_schema = 'public'")
        assert found.fetchone() == (0,)
