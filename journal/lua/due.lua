-- due: what has fallen due in a partition.
--
-- KEYS  1 owner · 2 due times of invocations, those of histories, or the agenda
-- ARGV  1 how many to answer at most
-- Answers {partition time, time of the next one that is not due yet or -1, id, id, …}, earliest first.
-- Refuses SCHEMA found, WRONGKEYTYPE key.

local function due(keys, argv)
  if wrong_type(keys[1], 'hash') then return refuse('WRONGKEYTYPE', keys[1]) end
  if wrong_type(keys[2], 'zset') then return refuse('WRONGKEYTYPE', keys[2]) end
  local held = redis.call('HMGET', keys[1], 'time', 'offset', 'schema')
  if held[3] ~= SCHEMA then return refuse('SCHEMA', tostring(held[3])) end
  local now = partition_time(held[1], held[2])
  local answer = redis.call('ZRANGEBYSCORE', keys[2], '-inf', int(now), 'LIMIT', 0, tonumber(argv[1]))
  local later = redis.call('ZRANGEBYSCORE', keys[2], '(' .. int(now), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  table.insert(answer, 1, tonumber(later[2]) or -1)
  table.insert(answer, 1, now)
  return answer
end

register('due', due, {'no-writes'})
