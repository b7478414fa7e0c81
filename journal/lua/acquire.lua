-- acquire: begin a tenure, provided that the partition is still as the caller observed it.
--
-- KEYS  1 owner
-- ARGV  1 partition count of the type · 2 epoch seen, empty when there was none · 3 lease counter seen · 4 new token
--       5 worker · 6 machine
--       7 identity of the server, "run id/replication id", behind that "/node" where one is known, empty when it tells
--       none · 8 the replication id that it had before it was promoted, empty when it was not · 9 when it was started, in
--       milliseconds of its clock
--       10 "1" when a restart may cost it what it has confirmed · 11 how far back and ahead a loss may reach, in ms
--       12 epoch · 13 token · 14 last batch confirmed, of the caller's own last tenure of this partition; 12 is empty
--       when it has had none · 15 "1" when nobody has had it since, as far as the caller knows
--       16 for how long the worker may be silent, in milliseconds
--
-- Answers {epoch, partition time, last batch number of the tenure before, its serial, history, doubt from, doubt until,
-- verdict}; without a doubt both are -1. The verdict is "lost" when the store has less than the caller knows of, "doubt"
-- when the server is another one than at the last acquisition and may have lost the end of the history. Either begins a
-- new history. Asked again with the token that holds the partition already, it answers the same and writes nothing: a
-- lost answer is asked for again.
-- Refuses MOVED_ON epoch (somebody else acquired it, or its holder renewed), SCHEMA found expected (version and partition
-- count), WRONGKEYTYPE key (not ours: left alone); all before the first write.

-- Whether somebody else wrote the hash: ours has a schema, and before its first use at most the clock's offset.
local function foreign(owner, schema, offset)
  return not schema and redis.call('HLEN', owner) > (offset and 1 or 0)
end

-- Whether the store has less of the caller's own tenure than it had confirmed to it.
local function is_shorter(epoch, token, batch, known, known_token, known_batch)
  if not epoch or tonumber(epoch) < known then return true end
  if tonumber(epoch) > known then return false end
  return (token and token ~= known_token) or batch < tonumber(known_batch)
end

-- A run of a server with one history, and the node that it was on; empty where that was not written down.
local function run_and_node(identity) return string.match(identity, '^([^/]*/?[^/]*)/?(.*)$') end

-- Whether the server is another one than the partition was last acquired on, and may know less than that one. One that
-- was promoted may, whatever it was a replica of: between the two, another one may have been promoted and replaced. So
-- may one on another node: it forgets at its next start that it was promoted.
local function may_know_less(before, present, former, may_lose)
  if not before or (present or '') == '' then return false end
  local run_before, node_before = run_and_node(before)
  local run, node = run_and_node(present)
  if run == run_before then return false end
  local is_elsewhere = node ~= '' and node_before ~= '' and node ~= node_before
  return may_lose == '1' or former ~= '' or is_elsewhere
end

local function acquire(keys, argv)
  local owner, partitions, token = keys[1], argv[1], argv[4]
  if wrong_type(owner, 'hash') then return refuse('WRONGKEYTYPE', owner) end
  local held = redis.call('HMGET', owner, 'schema', 'partitions', 'epoch', 'token', 'lease', 'released', 'batch',
    'serial', 'before', 'time', 'offset', 'history', 'server', 'doubt', 'doubt_from', 'doubt_until')
  local schema, epoch, offset = held[1], held[3], held[11]
  if foreign(owner, schema, offset) then return refuse('WRONGKEYTYPE', owner) end
  if schema and (schema ~= SCHEMA or held[2] ~= partitions) then
    return refuse('SCHEMA', schema .. '/' .. tostring(held[2]) .. ' ' .. SCHEMA .. '/' .. partitions)
  end

  local now = partition_time(held[10], offset)
  local from, till = tonumber(held[15]) or -1, tonumber(held[16]) or -1
  if epoch and held[4] == token then
    local batch, serial = string.match(held[9] or '0:0', '^(%d+):(%d+)$')
    local verdict, of = string.match(held[14] or '', '^(%a+):(%d+)$')
    if of ~= epoch then verdict = '' end
    return {tonumber(epoch), now, tonumber(batch), tonumber(serial), held[12] or '', from, till, verdict}
  end
  local unchanged = (epoch or '') == argv[2] and (not epoch or held[6] == '1' or held[5] == argv[3])
  if not unchanged then return refuse('MOVED_ON', epoch or '') end

  local batch, serial = tonumber(held[7]) or 0, tonumber(held[8]) or 0
  local next_epoch = (tonumber(epoch) or 0) + 1
  local known, verdict = tonumber(argv[12]), ''
  if known and is_shorter(epoch, held[4], batch, known, argv[13], argv[14]) then
    verdict = 'lost'
  elseif not (tonumber(epoch) == known and argv[15] == '1') and may_know_less(held[13], argv[7], argv[8], argv[10]) then
    verdict = 'doubt'
  end
  local history = held[12]
  -- Where everything is lost, the epochs begin anew, and yet it is not the first history.
  if verdict ~= '' then history = new_history(math.max(next_epoch, 2), token) end
  if not history then history = new_history(next_epoch, token) end
  redis.call('HSET', owner, 'schema', SCHEMA, 'partitions', partitions, 'epoch', int(next_epoch), 'token', token,
    'worker', argv[5], 'machine', argv[6], 'lease', '0', 'lease_ms', argv[16], 'batch', '0', 'serial', '0',
    'before', int(batch) .. ':' .. int(serial), 'server', argv[7] or '', 'history', history)
  redis.call('HDEL', owner, 'released')
  for slot = 0, RING - 1 do redis.call('HDEL', owner, 'a' .. slot) end
  local reach = tonumber(argv[11])
  if verdict ~= '' then
    local started = tonumber(argv[9]) + (tonumber(offset) or 0)
    -- Nothing is here that was written behind the last batch, and what was lost was written before the restart.
    local since = math.min(tonumber(held[10]) or now, started - reach, now - reach)
    from, till = hull(held[15], held[16], since, now + reach)
    redis.call('HSET', owner, 'doubt', verdict .. ':' .. int(next_epoch), 'doubt_from', int(from), 'doubt_until', int(till))
  end
  if verdict == '' and epoch and held[14] == 'restored:' .. epoch then
    -- Nobody has had it since that was declared: what the copy has in its inbox is taken in only now.
    from, till = hull(held[15], held[16], now, now + reach)
    redis.call('HSET', owner, 'doubt_until', int(till))
  end
  if verdict == 'lost' then
    redis.call('HINCRBY', owner, 'losses', 1)
    redis.call('HSET', owner, 'lost', int(now) .. ':' .. argv[14] .. ':' .. int(batch))
  end
  return {next_epoch, now, batch, serial, history, from, till, verdict}
end

register('acquire', acquire, {'allow-oom'})
