-- acquire: begin a tenure, provided that the partition is still as the caller observed it.
--
-- KEYS  1 owner
-- ARGV  1 partition count of the type · 2 epoch seen, empty when there was none · 3 lease counter seen · 4 new token
--       5 worker · 6 machine
--
-- Answers {epoch, partition time, last batch number of the tenure before, its serial}. Asked again with the token that
-- holds the partition already, it answers the same and writes nothing: a lost answer is asked for again.
-- Refuses MOVED_ON epoch (somebody else acquired it, or its holder renewed), SCHEMA found expected (version and partition
-- count), WRONGKEYTYPE key (not ours: left alone); all before the first write.

-- Whether somebody else wrote the hash: ours has a schema, and before its first use at most the clock's offset.
local function foreign(owner, schema, offset)
  return not schema and redis.call('HLEN', owner) > (offset and 1 or 0)
end

local function acquire(keys, argv)
  local owner, partitions, token = keys[1], argv[1], argv[4]
  if wrong_type(owner, 'hash') then return refuse('WRONGKEYTYPE', owner) end
  local held = redis.call('HMGET', owner, 'schema', 'partitions', 'epoch', 'token', 'lease', 'released', 'batch',
    'serial', 'before', 'time', 'offset')
  local schema, epoch = held[1], held[3]
  if foreign(owner, schema, held[11]) then return refuse('WRONGKEYTYPE', owner) end
  if schema and (schema ~= SCHEMA or held[2] ~= partitions) then
    return refuse('SCHEMA', schema .. '/' .. tostring(held[2]) .. ' ' .. SCHEMA .. '/' .. partitions)
  end

  local now = partition_time(held[10], held[11])
  if epoch and held[4] == token then
    local batch, serial = string.match(held[9] or '0:0', '^(%d+):(%d+)$')
    return {tonumber(epoch), now, tonumber(batch), tonumber(serial)}
  end
  local unchanged = (epoch or '') == argv[2] and (not epoch or held[6] == '1' or held[5] == argv[3])
  if not unchanged then return refuse('MOVED_ON', epoch or '') end

  local batch, serial = tonumber(held[7]) or 0, tonumber(held[8]) or 0
  local next_epoch = (tonumber(epoch) or 0) + 1
  redis.call('HSET', owner, 'schema', SCHEMA, 'partitions', partitions, 'epoch', int(next_epoch), 'token', token,
    'worker', argv[5], 'machine', argv[6], 'lease', '0', 'batch', '0', 'serial', '0',
    'before', int(batch) .. ':' .. int(serial))
  redis.call('HDEL', owner, 'released')
  for slot = 0, RING - 1 do redis.call('HDEL', owner, 'a' .. slot) end
  return {next_epoch, now, batch, serial}
end

register('acquire', acquire, {'allow-oom'})
