"""Every statement of the store, by name. What the tables are, and what they refuse, is in `migrations`."""
# ruff: noqa: S608 - what is put into these texts are the names of columns below

_RUN = (
    "run_id, workflow, workspace, driver, definition, inputs, details, status, start, reason, created_at, updated_at, "
    "ended_at"
)
ADD_DEFINITION = "INSERT OR IGNORE INTO definitions (hash, text) VALUES (?, ?)"
DEFINITION = "SELECT hash, text FROM definitions WHERE hash = (SELECT definition FROM runs WHERE run_id = ?)"
ADD_RUN = f"INSERT INTO runs ({_RUN}, seal) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
CHANGE_RUN = """UPDATE runs SET driver = ?, details = ?, status = ?, start = ?, reason = ?, updated_at = ?,
    ended_at = ?, seal = ? WHERE run_id = ?"""
RUN = f"SELECT {_RUN}, seal FROM runs WHERE run_id = ?"
RUNS = f"SELECT {_RUN}, seal FROM runs ORDER BY number DESC LIMIT ?"
STANDINGS = "SELECT run_id, status, updated_at FROM runs ORDER BY number DESC"
RUNS_OF_STATUS = f"""SELECT {_RUN}, seal FROM runs WHERE status IN (SELECT value FROM json_each(?))
    ORDER BY number DESC LIMIT ?"""
RUNS_OF_WORKSPACE = f"SELECT {_RUN}, seal FROM runs WHERE workspace = ? ORDER BY number DESC LIMIT ?"

LAST_EVENT = """SELECT runs.start, (SELECT COALESCE(MAX(seq), 0) FROM events WHERE run_id = runs.run_id) FROM runs
    WHERE run_id = ?"""
ADD_EVENT = "INSERT INTO events (run_id, seq, start, at, kind, closes, data, seal) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
NEWEST_EVENTS = """SELECT run_id, seq, start, at, kind, closes, data, seal FROM events WHERE run_id = ? AND seq < ?
    AND kind IN (SELECT value FROM json_each(?)) AND instr(data, ?) > 0 ORDER BY seq DESC LIMIT ?"""
EVENTS = """SELECT run_id, seq, start, at, kind, closes, data, seal FROM events WHERE run_id = ? AND seq > ?
    ORDER BY seq LIMIT ?"""

ADD_SIGNAL = """INSERT INTO signals (run_id, signal_id, kind, outcome, start, at, seal) VALUES (?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT DO NOTHING"""
SIGNALS = "SELECT run_id, signal_id, kind, outcome, start, at, seal FROM signals WHERE run_id = ? ORDER BY signal_id"

_STEP = "run_id, number, key, attempt, status, began_at, ended_at, input, outcome"
LAST_STEP = "SELECT COALESCE(MAX(number), 0) FROM steps WHERE run_id = ?"
LAST_ATTEMPT = f"SELECT {_STEP}, seal FROM steps WHERE run_id = ? AND key = ? ORDER BY attempt DESC LIMIT 1"
ADD_STEP = f"INSERT INTO steps ({_STEP}, seal) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
END_STEP = """UPDATE steps SET status = ?, ended_at = ?, outcome = ?, seal = ?
    WHERE run_id = ? AND number = ? AND status = 'begun'"""
STEPS = f"SELECT {_STEP}, seal FROM steps WHERE run_id = ? ORDER BY number"

_HANDOUT = "run_id, task_id, key, step, holder, handed_at, lease_until"
HANDOUT = f"SELECT {_HANDOUT}, seal FROM handouts WHERE run_id = ? AND task_id = ?"
HANDOUTS = f"SELECT {_HANDOUT}, seal FROM handouts WHERE run_id = ? ORDER BY task_id"
RENEW_HANDOUT = "UPDATE handouts SET holder = ?, lease_until = ?, seal = ? WHERE run_id = ? AND task_id = ?"
ADD_HANDOUT = f"INSERT INTO handouts ({_HANDOUT}, seal) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
DROP_HANDOUT = "DELETE FROM handouts WHERE run_id = ? AND task_id = ?"

LAST_STATE = "SELECT COALESCE(MAX(version), 0) FROM states WHERE run_id = ?"
ADD_STATE = "INSERT INTO states (run_id, version, at, cause, changes, seal) VALUES (?, ?, ?, ?, ?, ?)"
STATES = """SELECT run_id, version, at, cause, changes, seal FROM states WHERE run_id = ? AND version > ?
    ORDER BY version"""

LAST_TRANSFORMATIONS = "SELECT COALESCE(MAX(number), 0) FROM transformations WHERE run_id = ?"
ADD_TRANSFORMATIONS = "INSERT INTO transformations (run_id, number, applied, traces, seal) VALUES (?, ?, ?, ?, ?)"
TOTAL_TRANSFORMATIONS = "SELECT COALESCE(SUM(applied), 0) FROM transformations WHERE run_id = ?"
NEWEST_TRANSFORMATIONS = """SELECT run_id, number, applied, traces, seal FROM transformations WHERE run_id = ?
    AND (? IS NULL OR number < ?) AND instr(traces, ?) > 0 ORDER BY number DESC LIMIT ?"""

LAST_CHECKPOINT = """SELECT run_id, number, at, content, seal FROM checkpoints WHERE run_id = ?
    ORDER BY number DESC LIMIT 1"""
CHECKPOINT = "SELECT run_id, number, at, content, seal FROM checkpoints WHERE run_id = ? AND number = ?"
CHECKPOINT_NUMBERS = "SELECT number FROM checkpoints WHERE run_id = ? ORDER BY number"
LAST_CHECKPOINT_NUMBER = "SELECT COALESCE(MAX(number), 0) FROM checkpoints WHERE run_id = ?"
ADD_CHECKPOINT = "INSERT INTO checkpoints (run_id, number, at, content, seal) VALUES (?, ?, ?, ?, ?)"
DROP_CHECKPOINTS = "DELETE FROM checkpoints WHERE run_id = ? AND number < ?"
USE_PIECE = """INSERT INTO uses (run_id, hash, last) VALUES (?, ?, ?)
    ON CONFLICT DO UPDATE SET last = excluded.last"""
ADD_PIECE = "INSERT INTO pieces (run_id, hash, content) VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
PIECE = "SELECT content FROM pieces WHERE run_id = ? AND hash = ?"
DROP_PIECES = "DELETE FROM pieces WHERE run_id = ? AND hash IN (SELECT hash FROM uses WHERE run_id = ? AND last < ?)"
DROP_USES = "DELETE FROM uses WHERE run_id = ? AND last < ?"

ADD_AGENT = "INSERT INTO agents (agent_id, run_id, record, ended, seal) VALUES (?, ?, ?, ?, ?)"
END_AGENT = "UPDATE agents SET ended = ?, seal = ? WHERE agent_id = ?"
AGENT = "SELECT agent_id, run_id, record, ended, seal FROM agents WHERE agent_id = ?"
AGENTS_NOT_ENDED = "SELECT agent_id, run_id, record, ended, seal FROM agents WHERE ended IS NULL ORDER BY rowid"
AGENTS_OF_RUN = "SELECT agent_id, run_id, record, ended, seal FROM agents WHERE run_id = ? ORDER BY rowid"

DROP_RUN = "DELETE FROM runs WHERE run_id = ?"
DROP_AGENTS = "DELETE FROM agents WHERE run_id = ? AND ended IS NOT NULL"
DROP_LOOSE_AGENTS = "DELETE FROM agents WHERE run_id IS NULL AND ended IS NOT NULL"
DROP_DEFINITIONS = "DELETE FROM definitions WHERE hash NOT IN (SELECT definition FROM runs)"
