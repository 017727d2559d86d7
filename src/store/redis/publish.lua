-- Publishes to a region of imds in Redis: the only writer of its keys. Each run is atomic.
--
--   EVAL <this file> 1 imds:{REGION} put RECORD set BYTES       publish a record with its user-data
--   EVAL <this file> 1 imds:{REGION} put RECORD keep            publish a record and keep the user-data in the store
--   EVAL <this file> 1 imds:{REGION} put RECORD none            publish a record without user-data
--   EVAL <this file> 1 imds:{REGION} unseal RECORD ...          as put, and lift the seal of the user-data: RECORD has no sealedAt
--   EVAL <this file> 1 imds:{REGION} dry-run put ...            answer as put (unseal, remove, and these three for encrypted records) would, and write nothing
--   EVAL <this file> 1 imds:{REGION} init                       initialise an empty region, so that daemons accept it
--   EVAL <this file> 1 imds:{REGION} remove ID [REVISION]       remove an instance; the default REVISION is the last one plus 1. With REVISION
--                                                               an unknown id gets a tombstone too, for hypervisors that still serve it
--   EVAL <this file> 1 imds:{REGION} remove ID REVISION SEALED-AT [INCARNATION]   the same ('' for the default); the tombstone has this seal if the
--                                                               instance has none ('' for none): to restore a tombstone. With INCARNATION no other
--                                                               incarnation is removed
--
-- RECORD is the JSON document that docs/record.md describes. A record with `sealedAt` seals its user-data. A put keeps the seal in the store,
-- whatever sealedAt its record has.
--
-- All that is published or removed gets a place in one order of the region: ORDER, max(the last one + 1, the time in microseconds). It is in the
-- record as `order`, in the tombstone, and in the digest that the index has; imds:{REGION}:order has the last one. docs/redis-layout.md#order
-- has the rules for clocks, and of the mark imds:{REGION}:behind. Each answer is a list of strings:
--
--   published REVISION ORDER [SEALED-AT] | unchanged REVISION ORDER [SEALED-AT] | removed REVISION ORDER     ORDER is 0 for a dry-run
--   initialised TIME | unchanged TIME       init: the time of the initialisation (Unix seconds)
--   absent                                  remove without REVISION: there is no such instance and no tombstone; nothing was written
--   refused stale REVISION                  the instance was published or removed at this revision: publish a higher one
--   refused incarnation                     the store has another instance with this id, or its tombstone: RECORD or INCARNATION names another one
--   refused address-owned NETWORK RANGE OWNER   another instance owns the address or prefix, or a part of it
--   refused user-data WHY                   the bytes do not fit the record's userData
--   refused encrypted                       the region is encrypted: publish and remove with the keys, by the verbs below
--   refused behind ORDER [BY]               the region has the mark "behind", and this reads the store before it writes (keep, unseal, encrypt,
--                                           decrypt): it would publish contents that may be out of date. Publish the whole region again
--   refused invalid WHY                     this is not a record (the library checks every field, this script only what it reads)
--
-- The script cannot read encrypted records (src/store/crypto/record-cipher.ts has their layout), so FACTS tell it what to compare:
--
--   EVAL <this file> 1 imds:{REGION} put-encrypted FACTS RECORD USER-DATA [DIGEST]      publish; USER-DATA is empty if there is none
--   EVAL <this file> 1 imds:{REGION} unseal-encrypted FACTS RECORD USER-DATA [DIGEST]   publish and lift the seal
--   EVAL <this file> 1 imds:{REGION} encrypt FACTS RECORD USER-DATA DIGEST              encrypt the same contents again, at the same revision
--   EVAL <this file> 1 imds:{REGION} remove-encrypted ID [REVISION ...]                 as remove
--   EVAL <this file> 1 imds:{REGION} decrypt RECORD USER-DATA DIGEST                    store the same contents plain, at the same revision
--   EVAL <this file> 1 imds:{REGION} mark-plain                                         mark the region as plain: answers `plain`
--   EVAL <this file> 1 imds:{REGION} mark-encrypted                                     mark the region as encrypted: answers `encrypted SINCE`
--
-- The first encrypted value marks the region as encrypted; put, unseal and remove are refused from then on. The script cannot check that callers
-- of the other verbs have the keys: the mark protects against a publisher that lacks its keys by mistake, not against an attacker.
--
-- FACTS is JSON with these fields of the record: schema, id, incarnation, revision, order, region, hypervisors, sealedAt, and of each interface
-- the network and the addresses; `fromStore` is true if the contents were read from the store. Since Redis is not trusted, the publisher chooses the order,
-- and encrypts it in the record. With DIGEST the script writes only if the instance has this digest now (`none`: there is no instance). More
-- answers:
--
--   refused order LAST                      the order must be above LAST: encrypt the record again with a higher one
--   refused sealed SEALED-AT                the user-data is sealed: the record must have this sealedAt
--   refused changed DIGEST                  the instance has this digest, which is not the given one
--
-- The keys and their shapes: src/store/redis/keys.ts.

local base = KEYS[1]
local is_dry = ARGV[1] == 'dry-run'
local arguments = is_dry and { unpack(ARGV, 2) } or ARGV
local REGION = string.match(base or '', '^imds:{([A-Za-z0-9][A-Za-z0-9._-]*)}$')
local TOMBSTONE_SECONDS = 7 * 24 * 3600
-- A place further ahead of this server's clock is ignored. Daemons accept an hour more, so that one whose clock is slow accepts this one's places.
local MAX_AHEAD_MICROSECONDS = 23 * 3600 * 1000000
-- What a hypervisor says may be ahead by an hour less: a place above it is not too far ahead for the next Redis, whose clock may be slower.
local MAX_SAID_AHEAD_MICROSECONDS = 22 * 3600 * 1000000
-- The limit of MAX_ANNOUNCEMENT_BYTES in src/store/redis/announcements.ts.
local MAX_ANNOUNCEMENT_BYTES = 1024
-- The user of a hypervisor can set the mark "behind" to any text: no more of it is read.
local MAX_MARK_BYTES = 128
local ID_RULE = 'an id must be 1 to 64 letters, digits, ".", "_" or "-", beginning with a letter or digit'
-- The bounds of daemons: src/metadata/record.ts, and for encrypted values src/store/crypto/record-cipher.ts.
local MAX_RECORD_BYTES = 262144
local MAX_ENCRYPTION_OVERHEAD_BYTES = 115
-- The limit of MAX_REPORTS_VALUE_BYTES in src/store/redis/reports.ts.
local MAX_REPORTS_BYTES = 16384 + MAX_ENCRYPTION_OVERHEAD_BYTES
-- Lists and maps may be missing here: FACTS have only what the script compares.
local BOUNDS = { interfaces = 32, serverGroups = 256, publicKeys = 256, tags = 50, blockDevices = 256, events = 32, hypervisors = 2 }
local MAX_KEYS, KEY_BOUNDS = 256, { moreKeys = 31 }
local INTERFACE_BOUNDS = { ipv4Addresses = 64, ipv6Addresses = 64, ipv6Prefixes = 64, nameservers = 8, cloudIps = 64 }
local MAX_TAG_KEY_CHARACTERS, MAX_TAG_VALUE_CHARACTERS = 128, 256
local MAX_ORDER_BYTES = 32 -- as in src/store/order.ts
local TOO_LONG = 'RECORD is longer than ' .. MAX_RECORD_BYTES .. ' bytes'

local function refused(...) return { 'refused', ... } end
local function whole(number) return string.format('%.0f', number) end
local function is_revision(n) return type(n) == 'number' and n >= 1 and n % 1 == 0 and n <= 9007199254740991 end
local function is_id(value) return type(value) == 'string' and #value <= 64 and string.match(value, '^[A-Za-z0-9][A-Za-z0-9._-]*$') ~= nil end
local function is_table(value) return type(value) == 'table' end
local function count(map)
  local entries = 0
  for _ in pairs(map) do entries = entries + 1 end
  return entries
end
-- Counts the characters of UTF-8 text as JSON Schema does: the bytes that do not continue a character.
local function characters(text) return select(2, string.gsub(text, '[^\128-\191]', '')) end

-- Decodes a JSON object or list; nil for any other text.
local function decoded(text)
  local is_json, value = pcall(cjson.decode, text or '')
  return is_json and is_table(value) and value or nil
end

local function known(id)
  local entry = redis.call('HGET', base .. ':instances', id)
  return entry and cjson.decode(entry)
end

-- Returns the revision, the seal and the incarnation of a tombstone. Its form: `REVISION [ORDER] [i=INCARNATION] [SEALED-AT]`.
local function tombstone_of(id)
  local revision, rest = string.match(redis.call('GET', base .. ':tombstone:' .. id) or '', '^(%d+)(.*)$')
  return tonumber(revision), string.match(rest or '', ' (%d+%-%S+)$'), string.match(rest or '', ' i=(%S+)')
end

-- Returns the incarnation that the store has of an id, also of one removed in the last 7 days, or nil.
local function incarnation_of(id, before)
  if before then return before.incarnation end
  return (select(3, tombstone_of(id)))
end

-- True if the store has another incarnation of an id. Without a given one nothing is compared.
local function is_other(id, before, given)
  local held = incarnation_of(id, before)
  return given ~= nil and held ~= nil and given ~= held
end

-- Returns the place of a text or number; 0 if it is none, or later than a time in microseconds.
local function place_of(value, latest)
  local place = tonumber(value)
  return place and place >= 1 and place % 1 == 0 and place <= latest and place or 0
end

-- Returns the mark "behind", or nil. Its form: `ORDER [BY]`.
local function mark()
  local key = base .. ':behind'
  return redis.call('EXISTS', key) == 1 and redis.call('GETRANGE', key, 0, MAX_MARK_BYTES - 1) or nil
end

-- Returns the last place of the region, the highest that is known, and the time. Known are the last one, that of the mark "behind", and what the
-- hypervisors in some lists of names have announced: they would refuse an earlier one.
local function places(...)
  local time = redis.call('TIME')
  local now = time[1] * 1000000 + time[2]
  local last = place_of(redis.call('GET', base .. ':order'), now + MAX_AHEAD_MICROSECONDS)
  local latest = now + MAX_SAID_AHEAD_MICROSECONDS
  local highest = math.max(last, place_of(string.match(mark() or '', '^%d+'), latest))
  for _, names in ipairs({ ... }) do
    for _, name in ipairs(names) do
      local announced = decoded(redis.pcall('GETRANGE', base .. ':announcement:' .. name, 0, MAX_ANNOUNCEMENT_BYTES - 1))
      highest = math.max(highest, place_of(announced and announced.order, latest))
    end
  end
  return last, highest, now
end

-- Gives a place. A region that had a later one before has lost changes: it is marked.
local function give(place, last, highest)
  redis.call('SET', base .. ':order', whole(place))
  if last < highest then redis.call('SET', base .. ':behind', whole(highest), 'NX') end
end

-- Returns the refusal of what reads the store before it writes while the region is marked, or nil.
local function behind()
  local text = mark()
  if not text then return nil end
  local place, by = string.match(text, '^(%d+) ?([%w._-]*)$')
  return refused('behind', place or '0', by or '')
end

-- Returns the last revision of an instance, also of one removed in the last 7 days; nil: none.
local function revision_of(id, before) return before and tonumber(before.revision) or (tombstone_of(id)) end

-- Checks a time by the record's schema (RFC 3339): a seal that no daemon can read would make every later record faulty.
local function is_time(value)
  if type(value) ~= 'string' or #value > 35 then return false end
  local year, month, day, hour, minute, second, zone = string.match(value, '^(%d%d%d%d)%-(%d%d)%-(%d%d)T(%d%d):(%d%d):(%d%d)(.*)$')
  if not year or year < '1970' or month < '01' or month > '12' or hour > '23' or minute > '59' or second > '59' then return false end
  local is_leap = year % 4 == 0 and (year % 100 ~= 0 or year % 400 == 0)
  local last = month == '02' and (is_leap and '29' or '28') or string.find('04 06 09 11', month, 1, true) and '30' or '31'
  if day < '01' or day > last or year == '9999' and string.find(zone, '-', 1, true) then return false end
  zone = string.gsub(zone, '^%.%d+', '')
  local hours, minutes = string.match(zone, '^[+-](%d%d):(%d%d)$')
  return zone == 'Z' or (hours ~= nil and hours <= '23' and minutes <= '59')
end

-- Returns the seal of an instance in the store, or nil. Its entry, its record and its tombstone may each have it; any one is enough.
local function seal_of(id, before)
  if before and before.sealedAt then return before.sealedAt end
  local record = decoded(redis.call('HGET', base .. ':instance:' .. id, 'record'))
  if record and is_time(record.sealedAt) then return record.sealedAt end
  local _, sealed_at = tombstone_of(id)
  return sealed_at
end

-- A claim is `NETWORK RANGE`. A range is an address, or an IPv6 prefix with its length.
local function split_claim(claim) return string.match(claim, '^(%S+) (%S+)$') end

-- Returns the hexadecimal digits that every address of an IPv6 range begins with: 32 for an address, length / 4 for a prefix; nil for any
-- other text. A range contains another exactly when its digits begin the other's, and it sorts just before what it contains.
local function digits_of(range)
  local address, length = string.match(range, '^([%x:]+)/?(%d*)$')
  if not address or string.find(address, '%x%x%x%x%x') then return nil end
  local function expand(groups)
    return (string.gsub(groups, '%x+', function(group) return string.rep('0', 4 - #group) .. string.lower(group) end):gsub(':', ''))
  end
  local head, tail = string.match(address, '^(.-)::(.*)$')
  head, tail = expand(head or address), tail and expand(tail)
  local digits = tail and head .. string.rep('0', 32 - #head - #tail) .. tail or head
  if #digits ~= 32 then return nil end
  if length == '' then return digits end
  local is_ownable = string.match(digits, '^[23]') or string.match(digits, '^f[cd]')
  if not is_ownable or length % 4 ~= 0 or length + 0 < 48 or length + 0 > 124 then return nil end
  return string.match(string.sub(digits, length / 4 + 1), '^0+$') and string.sub(digits, 1, length / 4)
end

local function is_ipv6(range) return string.find(range, ':', 1, true) end

-- True for an address that cannot identify a guest: unspecified, link-local, multicast or broadcast (isUnusableAddress in src/metadata/address.ts).
local function is_unusable(address)
  local digits = is_ipv6(address) and digits_of(address)
  if digits then return string.match(digits, '^fe[89ab]') or string.match(digits, '^ff') or string.match(digits, '^0+$') end
  local a, b = string.match(address, '^(%d+)%.(%d+)%.%d+%.%d+$')
  a, b = tonumber(a), tonumber(b)
  return a and (a == 0 or a == 169 and b == 254 or a >= 224 and a <= 239) or address == '255.255.255.255'
end

-- Removes an instance from the indexes that its last publish added it to.
local function forget(id, entry)
  for _, claim in ipairs(entry.addresses) do
    local network, range = split_claim(claim)
    if is_ipv6(range) then
      redis.call('ZREM', base .. ':ranges:' .. network, digits_of(range) .. ' ' .. id)
    elseif redis.call('HGET', base .. ':addresses:' .. network, range) == id then
      redis.call('HDEL', base .. ':addresses:' .. network, range)
    end
  end
  for _, name in ipairs(entry.hypervisors) do redis.call('HDEL', base .. ':hypervisor:' .. name, id) end
end

-- Returns the other instance that owns a range or a part of it, or nil. `own`: the most ranges that this instance can have in the index.
local function other_owner(id, network, range, own)
  if not is_ipv6(range) then
    local owner = redis.call('HGET', base .. ':addresses:' .. network, range)
    return owner and owner ~= id and owner or nil
  end
  local key, digits = base .. ':ranges:' .. network, digits_of(range)
  -- No two members overlap, so the one that contains the range is the last member before it.
  for _, member in ipairs(redis.call('ZREVRANGEBYLEX', key, '(' .. digits, '-', 'LIMIT', 0, 1)) do
    local around, owner = split_claim(member)
    if string.sub(digits, 1, #around) == around and owner ~= id then return owner end
  end
  for _, member in ipairs(redis.call('ZRANGEBYLEX', key, '[' .. digits, '(' .. digits .. 'g', 'LIMIT', 0, own + 1)) do
    local _, owner = split_claim(member)
    if owner ~= id then return owner end
  end
end

-- Adds an instance to the indexes of addresses. Leaves out an IPv6 range inside another one of its own, so that no two members overlap.
local function index(id, claims)
  local own = {}
  for _, claim in ipairs(claims) do
    local network, range = split_claim(claim)
    if is_ipv6(range) then
      own[network .. ' ' .. digits_of(range)] = true
    else
      redis.call('HSET', base .. ':addresses:' .. network, range, id)
    end
  end
  for claim in pairs(own) do
    local network, digits = split_claim(claim)
    local is_inside = false
    for length = 1, #digits - 1 do is_inside = is_inside or own[network .. ' ' .. string.sub(digits, 1, length)] end
    if not is_inside then redis.call('ZADD', base .. ':ranges:' .. network, 0, digits .. ' ' .. id) end
  end
end

-- Notifies every hypervisor in some lists of names, each once.
local function notify(id, ...)
  local notified = {}
  for _, names in ipairs({ ... }) do
    for _, name in ipairs(names) do
      if not notified[name] then redis.call('PUBLISH', base .. ':notices:' .. name, id) end
      notified[name] = true
    end
  end
end

-- Reports of a guest belong to the hypervisor whose daemon wrote them (contract H9). When its instance leaves a hypervisor, a new one takes them
-- over, unless it has some already.
local function hand_over_reports(id, from, to)
  local stays = {}
  for _, name in ipairs(to) do stays[name] = true end
  for _, name in ipairs(from) do
    if not stays[name] then
      local key = base .. ':reports:' .. name .. ':' .. id
      local reports = redis.call('GETRANGE', key, 0, MAX_REPORTS_BYTES)
      for _, heir in ipairs(to) do
        if #reports > 0 and #reports <= MAX_REPORTS_BYTES then redis.call('SET', base .. ':reports:' .. heir .. ':' .. id, reports, 'NX') end
      end
      redis.call('DEL', key)
    end
  end
end

-- Returns what is wrong with the sizes of an object's lists and maps, or nil.
local function bound_fault(object, bounds, path)
  for name, most in pairs(bounds) do
    local value = object[name]
    if value ~= nil and not is_table(value) then return path .. name .. ' must be a list or an object' end
    if value ~= nil and count(value) > most then return path .. name .. ' has more than ' .. most .. ' entries' end
  end
end

-- Returns what is wrong with the numbers of a record's SSH keys, or nil.
local function keys_fault(users)
  local keys = 0
  for _, user in ipairs(users or {}) do
    local fault = is_table(user) and bound_fault(user, KEY_BOUNDS, 'publicKeys[].')
    if fault then return fault end
    keys = keys + 1 + (is_table(user) and count(user.moreKeys or {}) or 0)
  end
  if keys > MAX_KEYS then return 'publicKeys has more than ' .. MAX_KEYS .. ' keys' end
end

-- Returns what is wrong with a record's tags, or nil.
local function tags_fault(tags)
  for key, value in pairs(tags or {}) do
    if type(key) ~= 'string' or type(value) ~= 'string' then return 'tags must be an object of strings' end
    if characters(key) > MAX_TAG_KEY_CHARACTERS then return 'tags has a key of more than ' .. MAX_TAG_KEY_CHARACTERS .. ' characters' end
    if characters(value) > MAX_TAG_VALUE_CHARACTERS then return 'tags has a value of more than ' .. MAX_TAG_VALUE_CHARACTERS .. ' characters' end
  end
end

-- Returns the claims of every interface, or nil and what is wrong with them.
local function claims_of(record)
  local claims = {}
  for _, interface in ipairs(record.interfaces) do
    if not is_table(interface) then return nil, 'interfaces must be a list of objects' end
    local fault = bound_fault(interface, INTERFACE_BOUNDS, 'interfaces[].')
    if fault then return nil, fault end
    for _, name in ipairs({ 'ipv4Addresses', 'ipv6Addresses', 'ipv6Prefixes' }) do
      for _, range in ipairs(interface[name] or {}) do
        if type(range) ~= 'string' then return nil, 'interfaces[].' .. name .. ' must be a list of strings' end
        if name ~= 'ipv6Prefixes' then range = string.match(range, '^[^/]*') end
        local claim = (interface.network or 'default') .. ' ' .. range
        if not split_claim(claim) then return nil, 'an address or a network is empty or contains white space' end
        if (name ~= 'ipv4Addresses' or is_ipv6(range)) and not digits_of(range) then return nil, 'interfaces[].' .. name .. ' has an entry that is neither an IPv6 address nor a prefix that an interface may own' end
        if is_unusable(range) then return nil, 'interfaces[].' .. name .. ' has an address that is unspecified, link-local, multicast or broadcast, which cannot identify a guest' end
        claims[#claims + 1] = claim
      end
    end
  end
  return claims
end

-- Reads a record or FACTS: returns its table and its claims, or nil and what is wrong with it.
local function facts_of(text, lifts)
  if #(text or '') > MAX_RECORD_BYTES then return nil, TOO_LONG end
  local record = decoded(text)
  if not record then return nil, 'RECORD is not a JSON object' end
  if record.schema ~= 1 then return nil, 'schema is not 1' end
  if not is_id(record.id) then return nil, ID_RULE end
  if record.incarnation ~= nil and not is_id(record.incarnation) then return nil, 'incarnation is not 1 to 64 letters, digits, ".", "_" or "-"' end
  if record.region ~= REGION then return nil, 'region is not ' .. REGION .. ', the region of the key' end
  if not is_revision(record.revision) then return nil, 'revision is not a whole number of at least 1' end
  local fault = bound_fault(record, BOUNDS, '') or keys_fault(record.publicKeys) or tags_fault(record.tags)
  if fault then return nil, fault end
  if #(record.interfaces or {}) == 0 or #(record.hypervisors or {}) == 0 then return nil, 'interfaces and hypervisors must be lists that are not empty' end
  for _, name in ipairs(record.hypervisors) do
    if type(name) ~= 'string' then return nil, 'hypervisors must be a list of strings' end
  end
  if record.sealedAt ~= nil and not is_time(record.sealedAt) then return nil, 'sealedAt is not a time such as 2026-11-20T15:04:05Z' end
  if record.sealedAt and lifts then return nil, 'a record that unseals must not have sealedAt' end
  local claims, why = claims_of(record)
  if not claims then return nil, why end
  return record, claims
end

-- Returns the revision that an encrypted value was made for; nil for a plain value (src/store/crypto/record-cipher.ts).
local function encrypted_for(value) return string.match(value or '', '^imds1 %S+ (%d+)\n') end

-- True if an instance may be changed only with keys. A region that was encrypted by a version without the mark has none: there, the record decides.
local function needs_keys(id)
  return redis.call('EXISTS', base .. ':encrypted') == 1 or encrypted_for(redis.call('HGET', base .. ':instance:' .. id, 'record')) ~= nil
end

-- Adds a field to a JSON object. Of two fields with the same name the last one counts, for every JSON parser that reads this store.
local function with_field(text, name, value) return (string.gsub(text, '}%s*$', ',"' .. name .. '":' .. value .. '}')) end

-- Writes an instance, unless it is stale or claims addresses of another. `before`: its index entry. `again`: converts the values at the same revision.
local function write(record, claims, before, text, bytes, sealed_at, again)
  local id, instance = record.id, base .. ':instance:' .. record.id
  local contents = redis.sha1hex(text .. '\n' .. (bytes or ''))
  local revision = whole(record.revision)
  if is_other(id, before, record.incarnation) then return refused('incarnation') end
  local current = revision_of(id, before)
  if current and (record.revision < current or again and record.revision > current) then return refused('stale', whole(current)) end
  if current and record.revision == current and not again then
    if not before or before.digest ~= contents then return refused('stale', whole(current)) end
  end
  for _, claim in ipairs(claims) do
    local network, range = split_claim(claim)
    local owner = other_owner(id, network, range, before and #before.addresses or 0)
    if owner then return refused('address-owned', network, range, owner) end
  end

  local verdict = before and before.digest == contents and 'unchanged' or 'published'
  if is_dry then return { verdict, revision, '0', sealed_at } end
  local last, highest, now = places(record.hypervisors, before and before.hypervisors or {})
  local place = math.max(highest + 1, now)
  if encrypted_for(text) then
    place = place_of(record.order, now + MAX_AHEAD_MICROSECONDS)
    if place <= highest then return refused('order', whole(highest)) end
  else
    text = with_field(text, 'order', whole(place))
  end
  local seconds, digest = whole(math.floor(now / 1000000)), contents .. ' ' .. whole(place)
  redis.call('SET', base, seconds, 'NX') -- first, so that a full Redis refuses the whole publish
  give(place, last, highest)
  if encrypted_for(text) then redis.call('SET', base .. ':encrypted', seconds, 'NX') end
  if before then forget(id, before) end
  redis.call('DEL', base .. ':tombstone:' .. id, instance)
  redis.call('HSET', instance, 'record', text, 'digest', digest)
  if bytes then redis.call('HSET', instance, 'user-data', bytes) end
  index(id, claims)
  for _, name in ipairs(record.hypervisors) do redis.call('HSET', base .. ':hypervisor:' .. name, id, digest) end
  redis.call('HSET', base .. ':instances', id, cjson.encode({
    revision = revision, digest = contents, addresses = claims, hypervisors = record.hypervisors, sealedAt = sealed_at,
    incarnation = record.incarnation or before and before.incarnation,
  }))
  if before then hand_over_reports(id, before.hypervisors, record.hypervisors) end
  notify(id, record.hypervisors, before and before.hypervisors or {})
  return { verdict, revision, whole(place), sealed_at }
end

local function put(text, mode, bytes, lifts)
  local record, claims = facts_of(text, lifts)
  if not record then return refused('invalid', claims) end
  local id, instance = record.id, base .. ':instance:' .. record.id
  if needs_keys(id) then return refused('encrypted') end
  local expected = is_table(record.userData) and record.userData or nil
  if mode == 'keep' or lifts then
    local refusal = behind()
    if refusal then return refusal end
  end
  if mode == 'keep' then
    bytes = redis.call('HGET', instance, 'user-data') or nil
    local held = decoded(redis.call('HGET', instance, 'record'))
    local before = held and is_table(held.userData) and held.userData or nil
    if (before and before.sha256) ~= (expected and expected.sha256) then return refused('user-data', 'the user-data in the store is not the one that the record describes') end
  elseif mode == 'none' then
    bytes = nil
  elseif mode ~= 'set' or not bytes then
    return refused('invalid', 'the argument after RECORD must be set BYTES, keep or none')
  end
  if (bytes and #bytes) ~= (expected and expected.size) then return refused('user-data', 'the size in the record is not the size of the bytes') end

  local before = known(id)
  local sealed_at = not lifts and seal_of(id, before) or record.sealedAt
  if sealed_at ~= record.sealedAt then text = with_field(text, 'sealedAt', '"' .. sealed_at .. '"') end
  if #text > MAX_RECORD_BYTES then return refused('invalid', TOO_LONG .. ' with its seal') end
  return write(record, claims, before, text, bytes, sealed_at)
end

-- Publishes an encrypted record, which the script can neither read nor change. Its publisher gives FACTS to compare.
local function put_encrypted(verb, facts, text, bytes, digest)
  local lifts, again = verb == 'unseal-encrypted', verb == 'encrypt'
  local record, claims = facts_of(facts, lifts)
  if not record then return refused('invalid', claims) end
  if #(text or '') > MAX_RECORD_BYTES + MAX_ORDER_BYTES + MAX_ENCRYPTION_OVERHEAD_BYTES then return refused('invalid', TOO_LONG) end
  if bytes == '' then bytes = nil end
  local revision = whole(record.revision)
  if encrypted_for(text) ~= revision or bytes and encrypted_for(bytes) ~= revision then
    return refused('invalid', 'a value is not encrypted, or not for the revision of its FACTS')
  end
  local refusal = record.fromStore and behind()
  if refusal then return refusal end
  local before = known(record.id)
  if is_other(record.id, before, record.incarnation) then return refused('incarnation') end
  local current = revision_of(record.id, before)
  if current and record.revision < current then return refused('stale', whole(current)) end
  local held = not lifts and seal_of(record.id, before)
  if held and record.sealedAt ~= held then return refused('sealed', held) end
  local is = redis.call('HGET', base .. ':instance:' .. record.id, 'digest') or 'none'
  if (again or digest and digest ~= '') and digest ~= is then return refused('changed', is) end
  return write(record, claims, before, text, bytes, record.sealedAt, again)
end

local function remove(id, given, sealed, incarnation)
  local before = known(id)
  if given == '' and sealed then given = nil end
  if sealed == '' then sealed = nil end
  if incarnation and not is_id(incarnation) then return refused('invalid', 'INCARNATION is not 1 to 64 letters, digits, ".", "_" or "-"') end
  if is_other(id, before, incarnation) then return refused('incarnation') end
  local current = revision_of(id, before)
  -- No tombstone for an unknown id: it would make the first publish of such an instance stale for 7 days.
  if not current and not given then return { 'absent' } end
  current = current or 0
  local revision = before and current + 1 or current
  if given then revision = tonumber(given) end
  if not is_revision(revision) then return refused('invalid', 'REVISION is not a whole number of at least 1') end
  if revision < current then return refused('stale', whole(current)) end
  local sealed_at = seal_of(id, before) or sealed
  if sealed and not is_time(sealed) then return refused('invalid', 'SEALED-AT is not a time such as 2026-11-20T15:04:05Z') end
  local held = incarnation_of(id, before) or incarnation
  local verdict = before and 'removed' or 'unchanged'
  if is_dry then return { verdict, whole(revision), '0' } end
  local last, highest, now = places(before and before.hypervisors or {})
  local place = math.max(highest + 1, now)
  -- Above its maxmemory, Redis refuses commands of a script that may need memory until the script has written something. So the first write
  -- frees memory, and the tombstone is written in any case.
  redis.call('DEL', base .. ':instance:' .. id)
  redis.call('SET', base .. ':tombstone:' .. id, whole(revision) .. ' ' .. whole(place) .. (held and ' i=' .. held or '') .. (sealed_at and ' ' .. sealed_at or ''), 'EX', TOMBSTONE_SECONDS)
  give(place, last, highest)
  redis.call('HDEL', base .. ':instances', id)
  if before then
    forget(id, before)
    hand_over_reports(id, before.hypervisors, {})
    notify(id, before.hypervisors)
  end
  return { verdict, whole(revision), whole(place) }
end

-- Stores the same contents and revision as plain values.
local function decrypt(text, bytes, digest)
  local record, claims = facts_of(text, false)
  if not record then return refused('invalid', claims) end
  if bytes == '' and not is_table(record.userData) then bytes = nil end -- user-data may be empty
  local refusal = behind()
  if refusal then return refusal end
  local before = known(record.id)
  local held = seal_of(record.id, before)
  if held and record.sealedAt ~= held then return refused('sealed', held) end
  local is = redis.call('HGET', base .. ':instance:' .. record.id, 'digest') or 'none'
  if digest ~= is then return refused('changed', is) end
  return write(record, claims, before, text, bytes, record.sealedAt, true)
end

-- While a Cluster moves the region's slot, each of its keys is on one of two nodes. On either node, this command for two keys that do not exist fails then,
-- and ends the script before it has written anything. So a change is complete, or has no effect and must be repeated.
redis.call('EXISTS', base .. ':nowhere', base .. ':nowhere-else')

if not REGION then return refused('invalid', 'the key is not imds:{REGION}') end
local verb = arguments[1]
local DRY = { put = true, unseal = true, remove = true, ['put-encrypted'] = true, ['unseal-encrypted'] = true, ['remove-encrypted'] = true }
if is_dry and not DRY[verb] then return refused('invalid', 'dry-run is for put, unseal and remove') end
if verb == 'init' then
  local is_new = redis.call('SET', base, redis.call('TIME')[1], 'NX')
  return { is_new and 'initialised' or 'unchanged', redis.call('GET', base) }
end
if verb == 'put' or verb == 'unseal' then return put(arguments[2], arguments[3], arguments[4], verb == 'unseal') end
if verb == 'remove' and needs_keys(arguments[2] or '') then return refused('encrypted') end
if (verb == 'remove' or verb == 'remove-encrypted') and not is_id(arguments[2]) then return refused('invalid', ID_RULE) end
if verb == 'remove' or verb == 'remove-encrypted' then return remove(arguments[2] or '', arguments[3], arguments[4], arguments[5]) end
if verb == 'mark-encrypted' then
  redis.call('SET', base .. ':encrypted', redis.call('TIME')[1], 'NX')
  return { 'encrypted', redis.call('GET', base .. ':encrypted') }
end
if verb == 'mark-plain' then return { 'plain', whole(redis.call('DEL', base .. ':encrypted')) } end
if verb == 'decrypt' then return decrypt(arguments[2], arguments[3], arguments[4]) end
if verb == 'put-encrypted' or verb == 'unseal-encrypted' or verb == 'encrypt' then return put_encrypted(verb, arguments[2], arguments[3], arguments[4], arguments[5]) end
return refused('invalid', 'the first argument must be init, put, unseal, remove, put-encrypted, unseal-encrypted, encrypt, decrypt, remove-encrypted, mark-encrypted or mark-plain')
