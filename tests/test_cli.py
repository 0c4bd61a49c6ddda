"""The real command, run as users run it: files, pipes, bad lines, errors with carets."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
COMMAND = [sys.executable, "-m", "tamis.cli"]

PROFILES = """\
# warehouses
w-A@A: item == 'bolt' and quantity <= ctx.stock -> ctx.stock -= quantity
large: quantity >= 50   # no context
"""


def tamis(
    *arguments: str | Path, stdin: str | bytes | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    data = stdin.encode() if isinstance(stdin, str) else stdin
    done = subprocess.run(
        [*COMMAND, *map(str, arguments)], input=data, capture_output=True, timeout=600, cwd=cwd, check=False
    )
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


def matches(done: subprocess.CompletedProcess[str]) -> list[tuple[int, str]]:
    assert done.returncode == 0, done.stderr
    return [(row["message"], row["profile"]) for row in map(json.loads, done.stdout.splitlines())]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "p.tamis").write_text(PROFILES)
    (tmp_path / "stock.csv").write_text("context,stock\nA,12\n")
    return tmp_path


def lines(*rows: object) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


# -- match -------------------------------------------------------------------------------------------------------


def test_the_plan_goes_to_standard_error(folder: Path) -> None:
    done = tamis("match", "-p", "p.tamis", "-m", "-", "--plan", cwd=folder, stdin=lines({"item": "x", "quantity": 60}))
    assert matches(done) == [(0, "large")]
    assert "index blocks" in done.stderr and "2 clauses" in done.stderr


def test_pipe_of_json_lines_with_bad_ones(folder: Path) -> None:
    stdin = (
        lines({"item": "bolt", "quantity": 7})
        + "not json\n\n[1, 2]\n"
        + lines(
            {"item": "bolt", "quantity": "seven"}, {"item": "bolt", "quantity": 6}, {"item": "bolt", "quantity": 50}
        )
    )
    done = tamis("match", "-p", folder / "p.tamis", "-c", folder / "stock.csv", "-m", "-", stdin=stdin)
    assert matches(done) == [(0, "w-A"), (5, "large")]
    assert "3 rejected" in done.stderr
    assert "line 2" in done.stderr and "not JSON" in done.stderr
    assert "line 4" in done.stderr and "expected a JSON object" in done.stderr
    assert "line 5" in done.stderr and "got text 'seven'" in done.stderr


def test_strict_turns_rejections_into_exit_code_1(folder: Path) -> None:
    arguments = ("match", "-p", folder / "p.tamis", "-m", "-", "--strict")
    assert tamis(*arguments, stdin="oops\n").returncode == 1
    assert tamis(*arguments, stdin=lines({"quantity": 50})).returncode == 0


def test_empty_input_gives_no_matches(folder: Path) -> None:
    done = tamis("match", "-p", folder / "p.tamis", "-m", "-", "--format", "csv", stdin="")
    assert (done.returncode, done.stdout) == (0, "message,profile\n")


def test_messages_without_attributes_count_too(folder: Path) -> None:
    (folder / "p.tamis").write_text("nothing: not has(x)\n")
    assert matches(tamis("match", "-p", folder / "p.tamis", "-m", "-", stdin="{}\n{}\n")) == [
        (0, "nothing"),
        (1, "nothing"),
    ]


def test_long_csv_goes_in_several_logs(folder: Path) -> None:
    (folder / "m.csv").write_text("quantity\n" + "1\n" * 70_000 + "seven\n99\n")
    done = tamis("match", "-p", "p.tamis", "-m", "m.csv", cwd=folder)
    assert matches(done) == [(70_001, "large")]
    assert "row 70001" in done.stderr


def test_a_pipe_answers_before_it_ends(folder: Path) -> None:
    command = [*COMMAND, "match", "-p", str(folder / "p.tamis"), "-m", "-"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        for n in range(3):
            process.stdin.write(lines({"quantity": 60 + n}).encode())
            process.stdin.flush()
            assert json.loads(process.stdout.readline()) == {"message": n, "profile": "large"}
        process.stdin.close()
        assert process.wait(600) == 0


def test_a_closed_output_pipe_is_no_crash(folder: Path) -> None:
    (folder / "m.jsonl").write_text(lines(*({"quantity": 60} for _ in range(200_000))))
    command = " ".join([*COMMAND, "match", "-p", "p.tamis", "-m", "m.jsonl"])
    done = subprocess.run(
        ["bash", "-c", f"{command} | head -n 1"], cwd=folder, capture_output=True, text=True, timeout=600, check=False
    )
    assert json.loads(done.stdout) == {"message": 0, "profile": "large"}
    assert "Traceback" not in done.stderr


def test_updates_and_messages_in_one_order(folder: Path) -> None:
    (folder / "m.jsonl").write_text(
        lines(
            {"seq": 1, "item": "bolt", "quantity": 7},
            {"seq": 3, "item": "bolt", "quantity": 7},
            {"seq": None, "item": "bolt", "quantity": 1},
            {"seq": 2, "item": "bolt", "quantity": 9},
        )
    )
    (folder / "u.jsonl").write_text(
        lines(
            {"seq": 0, "context": "A", "attribute": "stock", "value": 9},
            {"seq": 2, "context": "A", "attribute": "stock", "value": 10},
            {"seq": 2, "context": "A", "attribute": "stock", "value": "many"},
            {"seq": 2, "context": 5, "attribute": "stock", "value": 1},
        )
    )
    done = tamis("match", "-p", "p.tamis", "-m", "m.jsonl", "-u", "u.jsonl", cwd=folder)
    assert matches(done) == [(0, "w-A"), (3, "w-A")]
    assert "got text 'many'" in done.stderr
    assert "context: expected text, got 5" in done.stderr
    assert "seq: the order of events must be a number, got None" in done.stderr


def test_times_order_events_too(folder: Path) -> None:
    (folder / "m.csv").write_text("at,item,quantity\n2024-05-01T10:00:00Z,bolt,7\n2024-05-01T12:00:00Z,bolt,7\n")
    (folder / "u.csv").write_text("at,context,attribute,value\n2024-05-01T11:00:00Z,A,stock,7\n")
    done = tamis("match", "-p", "p.tamis", "-m", "m.csv", "-u", "u.csv", "--order", "at", cwd=folder)
    assert matches(done) == [(1, "w-A")]


def test_without_order_updates_come_first_and_it_says_so(folder: Path) -> None:
    (folder / "m.csv").write_text("item,quantity\nbolt,7\n")
    (folder / "u.csv").write_text("context,attribute,value\nA,stock,7\n")
    done = tamis("match", "-p", "p.tamis", "-m", "m.csv", "-u", "u.csv", cwd=folder)
    assert matches(done) == [(0, "w-A")]
    assert "all updates were applied before the first message" in done.stderr


def test_order_in_one_file_only_is_an_error(folder: Path) -> None:
    (folder / "m.csv").write_text("seq,item,quantity\n1,bolt,7\n")
    (folder / "u.csv").write_text("context,attribute,value\nA,stock,7\n")
    done = tamis("match", "-p", "p.tamis", "-m", "m.csv", "-u", "u.csv", cwd=folder)
    assert done.returncode == 2
    assert "messages have the order column 'seq' and updates do not" in done.stderr


def test_csv_cells_take_the_kind_that_profiles_need(folder: Path) -> None:
    (folder / "p.tamis").write_text(
        "zip: zip == '01234'\nnumber: n > 1.5\nflag: flag\n"
        "time: at >= date '2024-05-01'\nhas: has(note)\nany: 'b' in tags\n"
    )
    (folder / "m.csv").write_text(
        "zip,n,flag,at,note,tags\n"
        '01234,1,true,2024-05-02T00:00:00Z,"","[""a"", ""b""]"\n'
        "1234,2,false,2024-04-30,,\n"
        "01234,two,,,,\n"
        "ragged,1\n"
        "9,3,,,,\n"
    )
    done = tamis("match", "-p", "p.tamis", "-m", "m.csv", "--rejected", "bad.csv", cwd=folder)
    first = [(0, "any"), (0, "flag"), (0, "has"), (0, "time"), (0, "zip")]
    assert sorted(matches(done)) == [*first, (1, "number"), (4, "number")]
    bad = list(csv.DictReader(io.StringIO((folder / "bad.csv").read_text())))
    assert sorted(row["place"] for row in bad) == ["row 3", "row 4"]
    assert {row["source"] for row in bad} == {"message"}


def test_json_text_is_a_time_only_where_profiles_need_one(folder: Path) -> None:
    (folder / "p.tamis").write_text("late: at >= date '2024-05-01'\ntext: name == '2024-05-01'\n")
    message = {"at": "2024-05-01T00:00:00Z", "name": "2024-05-01"}
    assert matches(tamis("match", "-p", folder / "p.tamis", "-m", "-", stdin=lines(message))) == [
        (0, "late"),
        (0, "text"),
    ]


def test_numeric_looking_text_in_json_updates_stays_text(folder: Path) -> None:
    (folder / "u.jsonl").write_text(lines({"context": "A", "attribute": "stock", "value": "12"}))
    done = tamis("match", "-p", "p.tamis", "-u", "u.jsonl", "-m", "-", cwd=folder, stdin=lines({"quantity": 50}))
    assert matches(done) == [(0, "large")]
    assert "got text '12'" in done.stderr


def test_parquet_in_and_out_with_key(folder: Path) -> None:
    pq.write_table(pa.table({"oid": ["a", "b"], "item": ["bolt", "nut"], "quantity": [7, 70]}), folder / "m.parquet")
    pq.write_table(
        pa.table({"context": ["A"], "attribute": ["stock"], "value": pa.array([12], pa.int64())}), folder / "u.parquet"
    )
    done = tamis(
        *("match", "-p", "p.tamis", "-m", "m.parquet", "-u", "u.parquet", "--key", "oid", "-o", "out.parquet"),
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert pq.read_table(folder / "out.parquet").to_pylist() == [
        {"message": 0, "oid": "a", "profile": "w-A"},
        {"message": 1, "oid": "b", "profile": "large"},
    ]


def test_parquet_through_pipes(folder: Path) -> None:
    sink = io.BytesIO()
    pq.write_table(pa.table({"quantity": [7, 70]}), sink)
    command = [
        *COMMAND,
        "match",
        "-p",
        str(folder / "p.tamis"),
        "-m",
        "-",
        "--input-format",
        "parquet",
        "-f",
        "parquet",
    ]
    done = subprocess.run(command, input=sink.getvalue(), capture_output=True, timeout=600, check=True)
    assert pq.read_table(io.BytesIO(done.stdout)).to_pylist() == [{"message": 1, "profile": "large"}]


def test_table_for_people(folder: Path) -> None:
    done = tamis("match", "-p", folder / "p.tamis", "-m", "-", "-f", "table", stdin=lines({"quantity": 50}))
    assert "1 matches" in done.stdout and "large" in done.stdout


def test_profiles_as_records_and_a_bad_one(folder: Path) -> None:
    (folder / "p.jsonl").write_text(
        lines(
            {"id": 1, "profile": "quantity > 5"},
            {"id": "broken", "profile": "quantity >"},
            {"id": "ctx", "profile": "quantity < ctx.stock", "context": "A", "on_match": "stock = 0"},
            {"profile": "true"},
        )
    )
    done = tamis("match", "-p", "p.jsonl", "-c", "stock.csv", "-m", "-", stdin=lines({"quantity": 7}), cwd=folder)
    assert matches(done) == [(0, 1), (0, "ctx")]
    assert "p.jsonl, line 2" in done.stderr and "^" in done.stderr
    assert "id and profile must not be empty" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("-p", "none.tamis", "-m", "-"), "none.tamis: No such file"),
        (("-p", "p.tamis", "-m", "m.xlsx"), "unknown extension '.xlsx'"),
        (("-p", "p.tamis", "-m", "-", "--schema", "price"), "expected name=kind"),
        (("-p", "p.tamis", "-m", "-", "-o", "out.xlsx"), "unknown extension '.xlsx'"),
        (("-p", "p.tamis", "-m", "-", "--strategy", "magic"), "agile"),
    ],
)
def test_usage_errors_are_short(folder: Path, arguments: tuple[str, ...], text: str) -> None:
    done = tamis("match", *arguments, stdin="", cwd=folder)
    assert done.returncode == 2
    assert text in done.stderr
    assert "Traceback" not in done.stderr


# -- explain and check -------------------------------------------------------------------------------------------


def test_explain_names_the_failing_predicate(folder: Path) -> None:
    arguments = ("explain", "-p", folder / "p.tamis", "-c", folder / "stock.csv", "--id", "w-A")
    done = tamis(*arguments, "-m", '{"item": "bolt", "quantity": 90}')
    assert done.returncode == 0, done.stderr
    assert "quantity <= ctx.stock" in done.stdout
    assert "90" in done.stdout and "12" in done.stdout
    (folder / "m.json").write_text('{"item": "bolt", "quantity": 1}')
    assert tamis(*arguments, "-m", f"@{folder / 'm.json'}").returncode == 0
    assert tamis(*arguments, "-m", "-", stdin='{"item": "bolt"}').returncode == 0


def test_explain_applies_updates_in_their_order(folder: Path) -> None:
    (folder / "u.csv").write_text("seq,context,attribute,value\n2,A,stock,31\n1,A,stock,17\n")
    done = tamis("explain", "-p", "p.tamis", "-u", "u.csv", "--id", "w-A", "-m", '{"item": "bolt"}', cwd=folder)
    assert "31" in done.stdout and "17" not in done.stdout


def test_explain_says_what_is_wrong(folder: Path) -> None:
    unknown = tamis("explain", "-p", folder / "p.tamis", "--id", "w-Z", "-m", "{}")
    assert unknown.returncode == 2 and "no profile 'w-Z'" in unknown.stderr
    broken = tamis("explain", "-p", folder / "p.tamis", "--id", "w-A", "-m", "{")
    assert broken.returncode == 2 and "not JSON" in broken.stderr


def test_check_shows_all_errors_with_carets(folder: Path) -> None:
    (folder / "bad.tamis").write_text("ok: a == 1\none: a = = 1\ntwo: a == 'x'\nno colon here\nthree: b < ctx.c\n")
    done = tamis("check", "bad.tamis", cwd=folder)
    assert done.returncode == 1
    for text in ("line 2", "line 3", "line 4", "line 5", "kind-conflict", "no-context", "^", "5 profiles, 4 errors"):
        assert text in done.stdout, text
    assert tamis("check", folder / "p.tamis").returncode == 0


def test_check_as_json(folder: Path) -> None:
    (folder / "bad.csv").write_text("id,profile\n1,a = = 1\n2,a == 1\n")
    done = tamis("check", "bad.csv", "--format", "json", cwd=folder)
    assert done.returncode == 1
    (error,) = map(json.loads, done.stdout.splitlines())
    assert error["place"] == "bad.csv, row 1"
    assert error["profile"] == "1"
    assert error["line"] == 1 and error["column"] > 1


# -- the rest ----------------------------------------------------------------------------------------------------


def test_examples_of_the_readme() -> None:
    done = tamis(
        *("match", "-p", EXAMPLES / "warehouses.tamis", "-m", EXAMPLES / "orders.csv", "-u", EXAMPLES / "stock.csv")
    )
    assert sorted(matches(done)) == [
        (0, "w-A"),
        (0, "w-B"),
        (1, "w-A"),
        (1, "w-B"),
        (2, "w-C"),
        (3, "w-C"),
        (5, "audit"),
        (5, "w-C"),
    ]
    assert "got text 'seven'" in done.stderr
    piped = tamis(
        *("match", "-p", EXAMPLES / "warehouses.tamis", "-c", EXAMPLES / "contexts.csv", "-m", "-", "--format", "csv"),
        stdin=(EXAMPLES / "orders.jsonl").read_text(),
    )
    assert piped.stdout.splitlines()[:3] == ["message,profile", "0,w-A", "0,w-B"]
    assert tamis("check", EXAMPLES / "warehouses.tamis").returncode == 0


def test_help_teaches_and_is_light() -> None:
    code = (
        "import sys, tamis.cli\n"
        "try:\n    tamis.cli.main()\nexcept SystemExit:\n    pass\n"
        "heavy = {'numba', 'pyarrow', 'numpy'} & set(sys.modules)\n"
        "assert not heavy, f'--help imports {heavy}'\n"
    )
    done = subprocess.run([sys.executable, "-c", code, "--help"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for word in ("match", "explain", "check", "demo", "tamis match -p warehouses.tamis"):
        assert word in done.stdout, word


def test_version_and_completion() -> None:
    assert tamis("--version").stdout.startswith("tamis ")
    assert "--install-completion" in tamis("--help").stdout


def test_small_demo_runs_and_agrees_with_the_reference() -> None:
    done = tamis("demo", "--small", "--profiles", "300", "--events", "2000")
    assert done.returncode == 0, done.stderr
    assert "equal, match by match" in done.stdout
    assert "busiest warehouses" in done.stdout


# -- content graphs ----------------------------------------------------------------------------------------------


def test_graphs_from_edge_tables(tmp_path: Path) -> None:
    (tmp_path / "topics.csv").write_text("parent,child\nsport,baseball\nbaseball,red sox\nnews,politics\n")
    (tmp_path / "p.tamis").write_text(
        "fan@u: topic within ctx.topics\nall: topic within 'news'\nbad: topic within 'nws'\n"
    )
    (tmp_path / "c.csv").write_text('context,topics\nu,"[""sport"", ""politics""]"\n')
    rows = lines({"topic": "red sox"}, {"topic": ["politics", "sport"]}, {"topic": "nowhere"})
    graph = ["--graph", f"topic={tmp_path / 'topics.csv'}"]
    done = tamis("match", "-p", tmp_path / "p.tamis", "-c", tmp_path / "c.csv", "-m", "-", *graph, stdin=rows)
    assert matches(done) == [(0, "fan"), (1, "fan"), (1, "all")]
    assert "no category 'nws'" in done.stderr
    assert "no category 'nowhere'" in done.stderr
    why = tamis("explain", "-p", tmp_path / "p.tamis", "--id", "all", "-m", '{"topic": "sport"}', *graph)
    assert "✗ topic within 'news'   (topic = 'sport')" in why.stdout
    wrong = tamis("check", tmp_path / "p.tamis", "--graph", "topics.csv")
    assert wrong.returncode != 0
    assert "expected attribute=file" in wrong.stderr
