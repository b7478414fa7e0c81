-- examine: where invocations of one lane stand in every structure that knows of them, at one moment.
--
-- KEYS  1 owner · 2 due · 3 runnable · 4 lane list · 5 those set aside · 6… for each invocation its stream, then its
--       result
-- ARGV  1 the lane's key · 2… the ids of the invocations
--
-- Answers {partition time, length of the list, 1 when the lane is runnable, id at the head of the list or empty}, and
-- behind that for each invocation: its place in the list from 0, -2 when it is set aside, or -1, the milliseconds for
-- which its stream is kept (-1 for ever, -2 when it has none), its due time or empty, 1 when it has a result, name and
-- bytes of its newest record or empty.
-- Refuses WRONGKEYTYPE key.

local function examine(keys, argv)
  local due, runnable, list = keys[2], keys[3], keys[4]
  if wrong_type(keys[1], 'hash') then return refuse('WRONGKEYTYPE', keys[1]) end
  if wrong_type(due, 'zset') then return refuse('WRONGKEYTYPE', due) end
  if wrong_type(runnable, 'set') then return refuse('WRONGKEYTYPE', runnable) end
  if wrong_type(list, 'list') then return refuse('WRONGKEYTYPE', list) end
  if wrong_type(keys[5], 'set') then return refuse('WRONGKEYTYPE', keys[5]) end
  local held = redis.call('HMGET', keys[1], 'time', 'offset')
  local answer = {partition_time(held[1], held[2]), redis.call('LLEN', list),
    redis.call('SISMEMBER', runnable, argv[1]), redis.call('LINDEX', list, 0) or ''}
  for each = 2, #argv do
    local position = 2 * each + 2
    if wrong_type(keys[position], 'stream') then return refuse('WRONGKEYTYPE', keys[position]) end
    local newest = redis.call('XREVRANGE', keys[position], '+', '-', 'COUNT', 1)[1] or {'', {'', ''}}
    local is_aside = redis.call('SISMEMBER', keys[5], argv[each]) == 1
    table.insert(answer, redis.call('LPOS', list, argv[each]) or (is_aside and -2 or -1))
    table.insert(answer, redis.call('PTTL', keys[position]))
    table.insert(answer, redis.call('ZSCORE', due, argv[each]) or '')
    table.insert(answer, redis.call('EXISTS', keys[position + 1]))
    table.insert(answer, newest[1])
    table.insert(answer, newest[2][2])
  end
  return answer
end

register('examine', examine, {'no-writes'})
