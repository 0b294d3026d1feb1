"""The map of ranks in the full-screen report: a cell for each, by host and by position in process groups."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from dptune.advice import Report
from dptune.commands.shared.reading import run_and_report
from dptune.measured.outliers import RankLag
from dptune.present.tui import rank_table
from dptune.present.tui.app import ReportApp
from dptune.present.tui.heat import Tile, groupings, heat, places, rows_of
from dptune.present.tui.rank_map import RankMap
from dptune.trace.run import Run

from ..measure.many_ranks import PER_HOST, Planted, run  # noqa: TID252 - tests are no installed package
from .test_tui import LARGE, SMALL, flat, screen, see

LATE_US = 2_500.0


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Report]:
    """Four hosts of four: the GPUs of gpu1 take 1.2 times as long, rank 14 idles for 2.5 ms before each step."""
    folder = tmp_path_factory.mktemp("planted")
    slow = dict.fromkeys(range(PER_HOST, 2 * PER_HOST), 1.2)
    run(folder, 4, Planted(gemm_times=slow, delays=lambda rank, step: LATE_US * (rank == 14)), name="gpu{}".format)
    return run_and_report([str(folder)], cached=False)


def lags(count: int, positions: bool = False) -> list[RankLag]:
    return [
        RankLag(rank=rank, lag_ns=0, steps_ns=[0], positions={"data": rank} if positions else {})
        for rank in range(count)
    ]


def cells(seen: str) -> Iterator[tuple[str, str]]:
    """Names and cells of the tiles on the screen."""
    yield from re.findall(r"([a-z]+ ?\d+) ([·▁▂▃▄▅▆▇█xX]{4})(?= |$)", flat(seen))


async def test_late_ranks_stand_out_and_the_cursor_goes_to_them(recorded: tuple[Run, Report]) -> None:
    planted, report = recorded
    lag_ns = {lag.rank: lag.lag_ns for lag in report.measured.outliers.ranks}
    levels = "▁▂▃▄▅▆▇█"
    slow = {rank: levels[-(-8 * lag_ns[rank] // lag_ns[14]) - 1] for rank in range(4, 8)}
    # the cursor is on the latest rank, and says that it is late
    drawn = {rank: slow.get(rank, "X" if rank == 14 else "·") for rank in range(16)}
    assert lag_ns[14] == pytest.approx(LATE_US * 1e3, rel=0.02)
    async with ReportApp(report, planted).run_test(size=LARGE) as pilot:
        assert "a cell per rank" not in flat(await see(pilot, "late ms by step", "3"))
        await see(pilot, "Rank 14 on gpu3: 2.5", "m")
        assert "x selected, X if late · not late ▁ to █: late" in flat(screen(pilot))
        hosts = dict(cells(screen(pilot)))
        assert hosts == {f"gpu{host}": "".join(drawn[4 * host + place] for place in range(4)) for host in range(4)}
        await see(pilot, "Ranks by tensor (g: by data)", "g")
        tensor = dict(cells(screen(pilot)))
        assert tensor == {f"tensor {at}": "".join(drawn[at + 4 * host] for host in range(4)) for at in range(4)}
        await see(pilot, "Ranks by data (g: by host)", "g")
        assert list(dict(cells(screen(pilot))).values()) == list(hosts.values())
        seen = flat(await see(pilot, "Position tensor 2, data 3"))
        assert "By step ██████ late in 100 % of steps" in seen
        assert "4-7 host gpu1" in seen
        await see(pilot, "Ranks by host", "g")
        at = pilot.app.query_one(RankMap)
        late = sorted(range(4, 8), key=lambda rank: -report.measured.outliers.ranks[rank].lag_ns)
        for rank in (*late, 14):
            await pilot.press("n")
            assert at.rank == rank
        await see(pilot, "Rank 15 on gpu3: ", "right")
        await pilot.press("right", "left", "left")  # not past the last one
        assert at.rank == 13
        await pilot.press("up", "down", "home")  # all hosts are on one row
        assert at.rank == 13
        await see(pilot, "1 of 4", "slash", *"gpu2", "enter")
        assert at.rank == 8
        await see(pilot, "none", *"x", "enter")
        await pilot.press("escape")
        await see(pilot, "rank 8, around step", "enter")


async def test_of_many_ranks_the_map_comes_first(recorded: tuple[Run, Report], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its keys are offered, and the table's with the table; each is at the rank of the other."""
    planted, report = recorded
    monkeypatch.setattr(rank_table, "_MOST_IN_TABLE", 8)
    async with ReportApp(report, planted).run_test(size=SMALL) as pilot:
        seen = flat(await see(pilot, "Rank 14 on gpu3", "3"))
        assert "Ranks by host (g: by tensor)" in seen
        assert "g Group n Next late" in seen
        assert "s Sort" not in seen
        seen = await see(pilot, "s Sort", "m")
        assert "Next late" not in seen
        assert re.search(r"│\W*14 .* gpu3", seen), "its row is scrolled to"
        await see(pilot, "Rank 13 on gpu3", "up", "m")
        await see(pilot, "rank 13, around step", "enter")


async def test_a_map_that_is_taller_than_its_frame_opens_at_the_latest_rank(
    recorded: tuple[Run, Report], monkeypatch: pytest.MonkeyPatch
) -> None:
    planted, report = recorded
    monkeypatch.setattr(rank_table, "_MOST_IN_TABLE", 8)
    many = lags(2_000)
    many[1_500] = many[1_500].model_copy(update={"lag_ns": 3_000_000, "steps_ns": [3_000_000]})
    found = report.measured.outliers.model_copy(update={"ranks": many})
    ranks = [
        rank.model_copy(update={"host": None, "missing": rank.missing | {"host": "the trace does not name it"}})
        for rank in report.measured.ranks
    ]
    measured = report.measured.model_copy(update={"outliers": found, "ranks": ranks})
    async with ReportApp(report.model_copy(update={"measured": measured}), planted).run_test(size=SMALL) as pilot:
        assert "r1472-1503 " in await see(pilot, "Rank 1500: 3.00 ms of own delay", "3")


def test_ranks_without_hosts_and_single_positions_stand_in_rows(recorded: tuple[Run, Report]) -> None:
    found = recorded[1].measured.outliers.model_copy(update={"ranks": lags(70, positions=True)})
    by_number, by_data = groupings(found, [])
    assert [tile.name for tile in by_number.tiles] == ["r0-31", "r32-63", "r64-69"]
    assert [tile.name for tile in by_data.tiles] == ["data 0-31", "data 32-63", "data 64-69"]
    assert [len(tile.ranks) for tile in by_data.tiles] == [32, 32, 6]


def test_tiles_fill_the_width_and_long_ones_go_on_below() -> None:
    tiles = [Tile(f"host{at}", tuple(lags(8))) for at in range(5)]
    assert [len(row) for row in rows_of(tiles, 46)] == [3, 2]  # 3 x (5 + 1 + 8) and 2 x 2 between
    assert [len(row) for row in rows_of(tiles, 45)] == [2, 2, 1]
    (tile,) = wide = [Tile("tensor 0", tuple(lags(100)))]
    rows = rows_of(wide, 60)
    assert [[part.name for part in row] for row in rows] == [["tensor 0"], [""], [""]]
    assert [len(part.ranks) for row in rows for part in row] == [48, 48, 4]  # a multiple of 8 of 60 - 9
    assert places(rows, wide)[99] == (2, 9 + 3)
    assert len(rows_of([tile], 1)) == 13  # eight cells where there is no room


def test_heat_shows_the_largest_of_its_steps() -> None:
    assert heat([0, 50, 100, 1], 100) == " ▄█▁"
    assert heat([0, 0, 0, 100, 0, 0], 100, cells=3) == " █ "
    assert heat([], 100) == ""
