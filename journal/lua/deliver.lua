-- deliver: put the messages of another partition into the inbox: each once, in the order in which they were sent.
--
-- KEYS  1 owner · 2 inbox · 3 marks · 4 inbox channel
--       5… for each message that may have been sent in another history: the result of the invocation that it asks for,
--          and the stream of that invocation
-- ARGV  1 source: the sending partition · 2 history of its numbers · 3 number of the first message, of the next one when
--       there is none · 4 the number up to which the receiver said that it has taken messages, when those between that
--       and the first are lost for good; else empty
--       5… for each message: the position of its first key, 0 when it is sent for the first time; and its bytes
--
-- The marks are a hash: source -> "history:last number taken:retired history,retired history,…", of which the last four
-- are kept. Of one history the numbers that follow the last one are taken and those up to it are dropped; another history
-- begins at number 1. A message whose invocation has a result or a stream already is counted and not taken.
-- Answers {last number taken before, last number taken now}.
-- Refuses GAP number (the first message does not follow the last number taken, which this is), STALE history (a later
-- one of this source is known), SCHEMA, WRONGKEYTYPE key; all before the first write. There is no limit for the inbox: a
-- full backlog is an answer to the sender. And, as it takes in, it refuses everything while memory is full.

local RETIRED = 4

-- The marks of a source: its history, the last number taken, and the histories before.
local function mark_of(marks, source)
  local held = redis.call('HGET', marks, source)
  if not held then return nil, 0, '' end
  local history, mark, retired = string.match(held, '^([^:]*):(%d+):(.*)$')
  return history, tonumber(mark), retired
end

local function is_retired(retired, history)
  return string.find(',' .. retired .. ',', ',' .. history .. ',', 1, true) ~= nil
end

local function retire(history, retired)
  if not history then return '' end
  local kept, count = history, 1
  for older in string.gmatch(retired, '[^,]+') do
    if count < RETIRED then
      kept, count = kept .. ',' .. older, count + 1
    end
  end
  return kept
end

local function deliver(keys, argv)
  local owner, inbox, marks = keys[1], keys[2], keys[3]
  if wrong_type(owner, 'hash') then return refuse('WRONGKEYTYPE', owner) end
  if wrong_type(inbox, 'stream') then return refuse('WRONGKEYTYPE', inbox) end
  if wrong_type(marks, 'hash') then return refuse('WRONGKEYTYPE', marks) end
  local schema = redis.call('HGET', owner, 'schema')
  if schema and schema ~= SCHEMA then return refuse('SCHEMA', schema) end

  local history, mark, retired = mark_of(marks, argv[1])
  if history ~= argv[2] then
    if is_retired(retired, argv[2]) then return refuse('STALE', argv[2]) end
    history, mark, retired = argv[2], 0, retire(history, retired)
  end
  local before, number = mark, tonumber(argv[3])
  if number > mark + 1 then
    if argv[4] ~= int(mark) then return refuse('GAP', int(mark)) end
    mark = number - 1
  end

  local newest
  for i = 5, #argv, 2 do
    if number == mark + 1 then
      local at = tonumber(argv[i])
      if at == 0 or redis.call('EXISTS', keys[at], keys[at + 1]) == 0 then
        newest = redis.call('XADD', inbox, '*', 'm', argv[i + 1])
      end
      mark = number
    end
    number = number + 1
  end
  if mark > before then
    redis.call('HSET', marks, argv[1], history .. ':' .. int(mark) .. ':' .. retired)
  end
  if newest then redis.call('SPUBLISH', keys[4], newest) end
  return {before, mark}
end

register('deliver', deliver)
