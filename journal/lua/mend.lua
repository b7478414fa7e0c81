-- mend: give a partition's owner hash back what it has lost, so that the partition can be owned again.
--
-- KEYS  1 owner
-- ARGV  1 partition count of the type
--
-- Answers the names of the fields that were broken; none when nothing was. Where the lost ones are those by which writes
-- of a tenure are told apart, the tenure ends as at a hand-over: whoever holds the partition is fenced and takes it anew.
-- Refuses SCHEMA found expected (version and partition count: another release wrote it, left alone), WRONGKEYTYPE key
-- (not ours: left alone).

local function number(value) return value and string.find(value, '^%d+$') end

-- Whether a hash was ours before it lost its schema: no other program writes these three.
local function ours(held) return held[1] or (held[3] and held[5] and held[9]) end

local function mend(keys, argv)
  local owner, broken = keys[1], {}
  if wrong_type(owner, 'hash') then return refuse('WRONGKEYTYPE', owner) end
  local held = redis.call('HMGET', owner, 'schema', 'partitions', 'epoch', 'token', 'lease', 'released', 'batch',
    'serial', 'worker', 'time')
  if redis.call('HLEN', owner) == 0 then return broken end
  if not ours(held) then return refuse('WRONGKEYTYPE', owner) end
  if (held[1] or SCHEMA) ~= SCHEMA or (held[2] or argv[1]) ~= argv[1] then
    return refuse('SCHEMA', tostring(held[1]) .. '/' .. tostring(held[2]) .. ' ' .. SCHEMA .. '/' .. argv[1])
  end

  local ends = false
  if not held[1] then table.insert(broken, 'schema') redis.call('HSET', owner, 'schema', SCHEMA) end
  if not held[2] then table.insert(broken, 'partitions') redis.call('HSET', owner, 'partitions', argv[1]) end
  if not number(held[5]) then table.insert(broken, 'lease') redis.call('HSET', owner, 'lease', '0') end
  if not number(held[7]) then table.insert(broken, 'batch') redis.call('HSET', owner, 'batch', '0') ends = true end
  if not number(held[8]) then table.insert(broken, 'serial') redis.call('HSET', owner, 'serial', '0') ends = true end
  if held[10] and not number(held[10]) then table.insert(broken, 'time') redis.call('HDEL', owner, 'time') end
  -- Without an epoch the partition counts as one that nobody has owned yet, and the token tells the histories apart.
  if held[3] and not number(held[3]) then table.insert(broken, 'epoch') redis.call('HDEL', owner, 'epoch') ends = true end
  if not held[4] and held[6] ~= '1' then table.insert(broken, 'token') ends = true end
  if ends then
    redis.call('HSET', owner, 'released', '1')
    redis.call('HDEL', owner, 'token')
  end
  return broken
end

register('mend', mend, {'allow-oom'})
