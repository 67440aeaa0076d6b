-- Health of a QueryAPI, ApiKey or RunStore for Argo CD: the same for all three, from status.conditions alone.
-- A status of an older generation says nothing of this one, whatever it says.
local health = {status = "Progressing", message = "waiting for the operator"}

local status = obj.status
if status == nil or status.observedGeneration ~= obj.metadata.generation then
  return health
end

local found = {}
for _, condition in ipairs(status.conditions or {}) do
  if condition.observedGeneration == nil or condition.observedGeneration == obj.metadata.generation then
    found[condition.type] = condition
  end
end

local function is_true(condition)
  return condition ~= nil and condition.status == "True"
end

if is_true(found.Stalled) then
  health.status = "Degraded"
  health.message = found.Stalled.message
elseif is_true(found.Reconciling) then
  health.message = found.Reconciling.message
elseif is_true(found.Ready) then
  health.status = "Healthy"
  health.message = found.Ready.message
elseif found.Ready ~= nil and (found.Ready.reason == "Paused" or found.Ready.reason == "Suspended") then
  -- As its owner asked: writes are stopped, or no pod admits the key.
  health.status = "Suspended"
  health.message = found.Ready.message
elseif found.Ready ~= nil and found.Ready.status == "False" then
  -- Applied and served, but not as asked for: a query is refused, the last good is served, or a key's time is over.
  health.status = "Degraded"
  health.message = found.Ready.message
end
return health
