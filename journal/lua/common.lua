-- Shared by every function of the library. The owner hash of a partition holds:
--   schema, partitions   written at first use and never changed
--   epoch, token         the tenure: one period of ownership
--   worker, machine      who holds it;  lease: a counter raised by the holder;  released: "1" after a hand-over
--   lease_ms             for how long the holder may be silent, by its own settings
--   before               "batch:serial" of the tenure before, so that an acquisition asked for twice answers the same
--   batch, serial        number and serial of the last batch applied in this tenure
--   time                 the last partition time written, in milliseconds;  offset: the clock's shift, set by tests only
--   server               "run id/replication id" of the server at acquisition, the first 16 digits of each
--   history              "epoch-8 hex digits": another one each time that the end of the history is known or suspected to
--                        be lost
--   doubt_from, doubt_until   the span of partition time in which records may be missing;  doubt: "why:epoch", why being
--                        lost, doubt or restored
--   losses, lost         how often the store had less than its owner knew of, and "time:batch known:batch found" of the
--                        last time
--   a0 … a15             the ring of the last answers, "number:serial:time"

local SCHEMA = '@SCHEMA@'
local RING = 16

-- The partition's time in milliseconds: never earlier than the last one written, whatever the server's clock does.
local function partition_time(last, offset)
  local clock = redis.call('TIME')
  local now = tonumber(clock[1]) * 1000 + math.floor(tonumber(clock[2]) / 1000) + (tonumber(offset) or 0)
  last = tonumber(last) or 0
  if last > now then return last end
  return now
end

local function int(value) return string.format('%.0f', value) end

-- The name of a history that begins.
local function new_history(epoch, random)
  local digits = {}
  for i = 1, 4 do digits[i] = string.format('%02x', string.byte(random, i) or 0) end
  return int(epoch) .. '-' .. table.concat(digits)
end

-- The span that covers one which is written already, if there is one, and another.
local function hull(from, till, other_from, other_till)
  return math.min(tonumber(from) or other_from, other_from), math.max(tonumber(till) or other_till, other_till)
end

local function refuse(code, text)
  return redis.error_reply(code .. ' ' .. (text or ''))
end

-- Whether a key is absent or of the wanted type; a foreign key is named and left alone.
local function wrong_type(key, wanted)
  local found = redis.call('TYPE', key)['ok']
  return found ~= 'none' and found ~= wanted
end
