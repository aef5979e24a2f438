// Generated from patchyard.protocol by `make generate`. Do not edit.

/** More text of the open agent message. */
export type AgentMessageDelta = {
  type: "agent_message_delta";
  item_id: string;
  delta: string;
};

/** Text of the model. */
export type AgentMessageItem = {
  id: string;
  type: "agent_message";
  text: string;
  status?: ItemStatus;
  phase?: string | null;
};

/** How far an agent may go. None: no limit of that kind. */
export type Allowance = {
  model_requests?: number | null;
  tool_calls?: number | null;
  tokens?: number | null;
  cost_usd?: number | null;
};

/** This command may run inside the sandbox, exactly as it was asked. */
export type AllowedCommand = {
  type: "command";
  script: string;
  cwd: string;
};

/** Patches may touch this file where the sandbox lets it be written anyway. */
export type AllowedPath = {
  type: "path";
  path: string;
};

/** Commands that begin with these words may run inside the sandbox. */
export type AllowedPrefix = {
  type: "prefix";
  words: Array<string>;
};

/** The Op was taken; what it does is seen in events. */
export type Applied = {
  type: "applied";
};

/** A person's answer to an approval question. */
export type ApprovalDecision = "accept" | "accept_for_session" | "decline" | "cancel";

/** When a person is asked. `untrusted`: known-safe read-only commands run, everything else asks. */
export type ApprovalMode = "untrusted" | "on-request" | "never";

/** What a person just allowed counts for later tasks on the repository as well, until it is revoked. */
export type ApprovalRemembered = {
  type: "approval_remembered";
  approval_id: string;
  repository: string;
  rules: Array<AllowedCommand | AllowedPrefix | AllowedPath>;
  by?: string | null;
};

/** An approval that counts for a repository, or did until it was revoked. */
export type ApprovalView = {
  id: string;
  tenant_id: string;
  repository: string;
  rule: AllowedCommand | AllowedPrefix | AllowedPath;
  thread_id: string;
  task_id?: string | null;
  approved_by?: string | null;
  approved_at: number;
  revoked_by?: string | null;
  revoked_at?: number | null;
};

/** A command that a person allowed for the thread, exactly as it was asked. */
export type ApprovedCommand = {
  script: string;
  cwd: string;
  escalated: boolean;
};

/** What people allowed for the rest of the thread. */
export type ApprovedRules = {
  commands?: Array<ApprovedCommand>;
  paths?: Array<string>;
  prefixes?: Array<Array<string>>;
};

/** An uploaded artefact: a git bundle or a tar archive of a tree. */
export type ArchiveSource = {
  type: "archive";
  artefact_id: string;
  format: "bundle" | "tar";
};

/** Answer to a question about a budget that is used up. `decline`: the turn ends as if nobody had been asked. */
export type BudgetAnswer = {
  type: "budget_answer";
  request_id: string;
  decision: "accept" | "decline" | "cancel";
  budgets?: BudgetLimits | null;
};

/** Limits that take the place of those in Budgets. None: as it is. */
export type BudgetLimits = {
  model_requests?: number | null;
  tool_calls?: number | null;
  tokens?: number | null;
  wall_time_s?: number | null;
  cost_usd?: number | null;
};

/** How much of a limited budget is used. */
export type BudgetMeter = {
  budget: BudgetName;
  used: number;
  limit: number;
};

/** The spend budgets of a turn, by the name of their limit in Budgets. */
export type BudgetName = "model_requests" | "tool_calls" | "tokens" | "wall_time_s" | "cost_usd";

/** A budget of the turn is used up: may it have more? */
export type BudgetRequest = {
  type: "budget_request";
  request_id: string;
  budget: BudgetName;
  used: number;
  limit: number;
  proposed: BudgetLimits;
  meters?: Array<BudgetMeter>;
};

/** Spend budgets of one turn. None: no limit of that kind. `when_spent` says what happens at a limit. */
export type Budgets = {
  model_requests?: number | null;
  tool_calls?: number | null;
  tokens?: number | null;
  wall_time_s?: number | null;
  cost_usd?: number | null;
  when_spent?: "ask" | "end" | null;
};

/** An agent that this thread's agent started in a thread of its own. */
export type ChildAgent = {
  thread_id: string;
  turn_id: string;
  message: string;
  closed?: boolean;
  usage?: TokenUsage;
  cost_usd?: number | null;
  model_requests?: number;
  tool_calls?: number;
  share?: Allowance | null;
  up_to?: Allowance | null;
};

/** Kill the commands that outlived their turn. */
export type CleanBackgroundTerminals = {
  type: "clean_background_terminals";
};

/** A command in the sandbox. */
export type CommandExecutionItem = {
  id: string;
  type: "command_execution";
  command: string;
  cwd: string;
  status: ItemStatus;
  process_id?: number | null;
  aggregated_output?: string | null;
  exit_code?: number | null;
  duration_ms?: number | null;
};

/** Compact the history. During a turn it waits for the step to end. */
export type Compact = {
  type: "compact";
};

/** A new context window: recovery needs only the newest of these and what follows. */
export type Compacted = {
  window_number: number;
  replacement_history: Array<Message | Reasoning | FunctionCall | FunctionCallOutput | CustomToolCall | CustomToolCallOutput | CompactionItem | OpaqueItem>;
  summary?: string | null;
  reason: "manual" | "context_limit" | "model_asked" | "model_downshift" | "model_changed";
  method?: "local" | "remote" | "token_budget" | null;
};

/** See Compacted. */
export type CompactedLine = {
  timestamp: number;
  ordinal: number;
  submission_id?: string | null;
  turn_id?: string | null;
  type: "compacted";
  payload: Compacted;
};

/** A provider's own compaction of the history: opaque, goes back unchanged. */
export type CompactionItem = {
  type: "compaction";
  id?: string | null;
  encrypted_content?: string | null;
};

/** The history was compacted. */
export type ContextCompactionItem = {
  id: string;
  type: "context_compaction";
  status: ItemStatus;
  window_number?: number | null;
  trigger?: "manual" | "auto" | null;
  method?: "local" | "remote" | "token_budget" | null;
  tokens_before?: number | null;
  tokens_after?: number | null;
};

/** A call of a freeform tool (apply_patch): the input is plain text. */
export type CustomToolCall = {
  type: "custom_tool_call";
  call_id: string;
  name: string;
  input: string;
  id?: string | null;
};

/** What the freeform tool answered. */
export type CustomToolCallOutput = {
  type: "custom_tool_call_output";
  call_id: string;
  output: string | Array<InputText | InputImage | OutputText | Refusal>;
  id?: string | null;
};

/** No restriction per command; the container itself stays hardened. */
export type DangerFullAccess = {
  type: "danger-full-access";
};

/** A client's result of a tool that the client itself provides. */
export type DynamicToolResponse = {
  type: "dynamic_tool_response";
  call_id: string;
  output: string;
  success: boolean;
};

/** Journal of something done to the outside world: the intent before, the outcome after. */
export type Effect = {
  key: string;
  stage: "intent" | "done";
  kind: string;
  data?: Record<string, unknown>;
};

/** See Effect. */
export type EffectLine = {
  timestamp: number;
  ordinal: number;
  submission_id?: string | null;
  turn_id?: string | null;
  type: "effect";
  payload: Effect;
};

/** Closed set of error codes. Clients may match on them; messages may change. */
export type ErrorCode = "invalid_request" | "unauthorized" | "not_found" | "conflict" | "payload_too_large" | "queue_full" | "queue_unavailable" | "catalog_unavailable" | "store_unavailable" | "thread_closed" | "internal" | "repository_not_found" | "repository_not_allowed" | "revision_not_found" | "setup_failed" | "engine_unavailable" | "image_missing" | "sandbox_refused" | "sandbox_lost" | "disk_full" | "model_unauthorized" | "model_rate_limited" | "model_overloaded" | "model_bad_request" | "model_unreachable" | "model_stream_failed" | "model_quota_exceeded" | "context_window_exceeded" | "budget_exceeded" | "interrupted" | "verification_failed" | "verify_tool_missing" | "no_change" | "hook_blocked";

/** Fatal for the submission. */
export type ErrorEvent = {
  type: "error";
  error: ErrorInfo;
};

/** An error as data. */
export type ErrorInfo = {
  code: ErrorCode;
  message: string;
  retryable?: boolean;
  details?: Record<string, string>;
};

/** One entry of a thread's event queue, as watchers get it. */
export type Event = {
  tenant_id: string;
  thread_id: string;
  ordinal?: number | null;
  submission_id?: string | null;
  turn_id?: string | null;
  msg: SessionConfigured | TurnStarted | TurnRecovered | TurnParked | TurnCompleted | TurnInterrupted | TurnFailed | ThreadClosed | ThreadSettingsApplied | OpRejected | OpApplied | TaskStatusChanged | WorkspacePrepared | SetupStarted | SetupCompleted | PatchProduced | VerificationStarted | VerificationCompleted | ItemStarted | ItemCompleted | TokenCount | PlanUpdate | ReviewCompleted | ExecApprovalRequest | PatchApprovalRequest | RequestUserInput | BudgetRequest | RequestResolved | ApprovalRemembered | Warning_ | ErrorEvent | StreamError | HookStarted | HookCompleted | AgentMessageDelta | ReasoningDelta | ToolCallInputDelta | ExecOutputDelta | PatchProgress | SetupOutputDelta;
};

/** An event, as watchers saw it. */
export type EventMsgLine = {
  timestamp: number;
  ordinal: number;
  submission_id?: string | null;
  turn_id?: string | null;
  type: "event_msg";
  payload: SessionConfigured | TurnStarted | TurnRecovered | TurnParked | TurnCompleted | TurnInterrupted | TurnFailed | ThreadClosed | ThreadSettingsApplied | OpRejected | OpApplied | TaskStatusChanged | WorkspacePrepared | SetupStarted | SetupCompleted | PatchProduced | VerificationStarted | VerificationCompleted | ItemStarted | ItemCompleted | TokenCount | PlanUpdate | ReviewCompleted | ExecApprovalRequest | PatchApprovalRequest | RequestUserInput | BudgetRequest | RequestResolved | ApprovalRemembered | Warning_ | ErrorEvent | StreamError | HookStarted | HookCompleted;
};

/** Answer to a question about a command. */
export type ExecApproval = {
  type: "exec_approval";
  approval_id: string;
  decision: ApprovalDecision;
  prefix_rule?: Array<string> | null;
  message?: string | null;
};

/** May this command run? */
export type ExecApprovalRequest = {
  type: "exec_approval_request";
  approval_id: string;
  item_id: string;
  command: Array<string>;
  cwd: string;
  reason?: string | null;
  proposed_prefix_rule?: Array<string> | null;
  session_scope?: "thread" | "repository";
};

/** More output of a running command, control sequences kept. */
export type ExecOutputDelta = {
  type: "exec_output_delta";
  item_id: string;
  delta: string;
};

/** Somebody else confines the commands; Patchyard adds nothing per command. */
export type ExternalSandbox = {
  type: "external-sandbox";
  network_access?: boolean;
};

/** A patch. */
export type FileChangeItem = {
  id: string;
  type: "file_change";
  changes: Array<FileUpdate>;
  status: ItemStatus;
  error?: string | null;
};

/** One file of a patch. */
export type FileUpdate = {
  path: string;
  kind: "add" | "update" | "delete";
  move_path?: string | null;
  diff: string;
};

/** A call of a tool with JSON arguments, still as text: they may be broken. */
export type FunctionCall = {
  type: "function_call";
  call_id: string;
  name: string;
  arguments: string;
  id?: string | null;
  namespace?: string | null;
};

/** What the tool answered. */
export type FunctionCallOutput = {
  type: "function_call_output";
  call_id: string;
  output: string | Array<InputText | InputImage | OutputText | Refusal>;
  id?: string | null;
};

/** A repository to clone: an https or ssh URL, or an absolute local path (only from the local user). */
export type GitSource = {
  type: "git";
  url: string;
};

/** on-request with a switch per kind of question; a switch that is off means: refuse instead of ask. */
export type GranularApproval = {
  type: "granular";
  sandbox_approval: boolean;
  rules: boolean;
  mcp_elicitations: boolean;
  request_permissions?: boolean;
  skill_approval?: boolean;
};

/** A hook ended. */
export type HookCompleted = {
  type: "hook_completed";
  event: string;
  command: string;
  outcome: "ok" | "blocked" | "failed" | "timed_out";
  message?: string | null;
  source?: "tenant" | "task" | "repository" | null;
};

/** When a hook runs. */
export type HookEvent = "SessionStart" | "UserPromptSubmit" | "PreToolUse" | "PermissionRequest" | "PostToolUse" | "PreCompact" | "PostCompact" | "Stop";

/** A command that runs inside the sandbox at an event: JSON on its standard input, an answer on its standard output. */
export type HookSpec = {
  matcher?: string | null;
  command: string;
  timeout_s?: number;
};

/** A hook runs. */
export type HookStarted = {
  type: "hook_started";
  event: string;
  command: string;
  source?: "tenant" | "task" | "repository" | null;
};

/** An image from the user: an https or data URL. */
export type ImageInput = {
  type: "image";
  url: string;
  detail?: string | null;
};

/** An image that the model reads, usually a data URL. */
export type InputImage = {
  type: "input_image";
  image_url: string;
  detail?: string | null;
};

/** Text that the model reads. */
export type InputText = {
  type: "input_text";
  text: string;
};

/** A message from another agent's thread. */
export type InterAgentCommunication = {
  type: "inter_agent_communication";
  author_thread_id: string;
  message: string;
  trigger_turn?: boolean;
};

/** End the running turn as interrupted. On an idle thread it answers at once. */
export type Interrupt = {
  type: "interrupt";
  turn_id?: string | null;
  keep_background?: boolean;
};

/** An item was closed, with its final content. */
export type ItemCompleted = {
  type: "item_completed";
  item: UserMessageItem | AgentMessageItem | ReasoningItem | CommandExecutionItem | FileChangeItem | McpToolCallItem | PlanItem | ContextCompactionItem | SubAgentItem;
  completed_at: number;
};

/** An item was opened. */
export type ItemStarted = {
  type: "item_started";
  item: UserMessageItem | AgentMessageItem | ReasoningItem | CommandExecutionItem | FileChangeItem | McpToolCallItem | PlanItem | ContextCompactionItem | SubAgentItem;
  started_at: number;
};

/** State of an item that takes time. */
export type ItemStatus = "in_progress" | "completed" | "failed" | "declined" | "interrupted";

/** A call of an MCP tool. */
export type McpToolCallItem = {
  id: string;
  type: "mcp_tool_call";
  server: string;
  tool: string;
  arguments: Record<string, unknown>;
  status: ItemStatus;
  result?: string | null;
  error?: string | null;
  duration_ms?: number | null;
};

/** A message of the user, the developer or the assistant. */
export type Message = {
  type: "message";
  role: "user" | "developer" | "system" | "assistant";
  content: Array<InputText | InputImage | OutputText | Refusal>;
  id?: string | null;
  phase?: string | null;
};

/** See ModelRequestRecord. */
export type ModelRequestLine = {
  timestamp: number;
  ordinal: number;
  submission_id?: string | null;
  turn_id?: string | null;
  type: "model_request";
  payload: ModelRequestRecord;
};

/** One attempt of a model request. Times are milliseconds since the epoch; None: not reached. */
export type ModelRequestRecord = {
  request_id: string;
  response_id?: string | null;
  model: string;
  provider: string;
  transport: "sse" | "websocket";
  attempt: number;
  queued_at: number;
  sent_at?: number | null;
  first_byte_at?: number | null;
  first_token_at?: number | null;
  completed_at?: number | null;
  input_items: number;
  usage?: TokenUsage | null;
  cost_usd?: number | null;
  error?: ErrorInfo | null;
  span_id?: string | null;
};

/** No repository: an empty workspace. */
export type NoSource = {
  type: "none";
};

/** Refused; nothing was changed. */
export type NotSubmitted = {
  type: "not_submitted";
  reason: NotSubmittedReason;
  active_turn_id?: string | null;
};

/** Why turn input was not taken. Checked in this order: no turn, wrong id, kind, empty, schema. */
export type NotSubmittedReason = "not_idle" | "no_active_turn" | "expected_turn_mismatch" | "active_turn_not_steerable" | "empty_input" | "output_schema_mismatch";

/** The answer to an Op that has no other visible effect. */
export type OpApplied = {
  type: "op_applied";
  op: string;
  overrides?: TurnOverrides | null;
};

/** The answer to an Op that could not be applied when its turn came. */
export type OpRejected = {
  type: "op_rejected";
  op: string;
  reason?: NotSubmittedReason | null;
  message: string;
};

/** An item of a kind that Patchyard does not interpret (hosted web search, …): kept and sent back unchanged. */
export type OpaqueItem = {
  type: string;
};

/** Text that the model wrote. */
export type OutputText = {
  type: "output_text";
  text: string;
};

/** Answer to a question about a patch. */
export type PatchApproval = {
  type: "patch_approval";
  approval_id: string;
  decision: ApprovalDecision;
  message?: string | null;
};

/** May this patch be written? */
export type PatchApprovalRequest = {
  type: "patch_approval_request";
  approval_id: string;
  item_id: string;
  changes: Array<FileUpdate>;
  reason?: string | null;
  session_scope?: "thread" | "repository";
};

/** The work tree's difference to the base was stored. */
export type PatchProduced = {
  type: "patch_produced";
  patch: PatchSummary;
};

/** Files that a patch touches, as far as it has arrived. */
export type PatchProgress = {
  type: "patch_progress";
  item_id: string;
  paths: Array<string>;
};

/** The patch that a task produced. */
export type PatchSummary = {
  artefact_id: string;
  files: number;
  insertions: number;
  deletions: number;
  bytes: number;
};

/** The agent's plan; a later one replaces it. */
export type PlanItem = {
  id: string;
  type: "plan";
  explanation?: string | null;
  steps: Array<PlanStep>;
};

/** One line of the plan. */
export type PlanStep = {
  step: string;
  status: "pending" | "in_progress" | "completed";
};

/** The agent changed its plan. */
export type PlanUpdate = {
  type: "plan_update";
  explanation?: string | null;
  plan: Array<PlanStep>;
};

/** Commands may read everything in the box and write only to its scratch space. */
export type ReadOnly = {
  type: "read-only";
};

/** The model's reasoning: a summary to show, and the encrypted whole that goes back unchanged. */
export type Reasoning = {
  type: "reasoning";
  id?: string | null;
  summary?: Array<SummaryText>;
  encrypted_content?: string | null;
};

/** More text of the open reasoning summary. */
export type ReasoningDelta = {
  type: "reasoning_delta";
  item_id: string;
  delta: string;
};

/** Summary of the model's reasoning. */
export type ReasoningItem = {
  id: string;
  type: "reasoning";
  summary: Array<string>;
  status?: ItemStatus;
};

/** Go on with an unfinished turn under its own id, without new input. */
export type RecoverTurn = {
  type: "recover_turn";
  turn_id: string;
};

/** Read the MCP servers' tool lists again. */
export type RefreshMcpServers = {
  type: "refresh_mcp_servers";
};

/** The model's refusal to answer. */
export type Refusal = {
  type: "refusal";
  refusal: string;
};

/** Read the tenant's configuration again. */
export type ReloadUserConfig = {
  type: "reload_user_config";
};

/** Answer to a request for wider permissions. */
export type RequestPermissionsResponse = {
  type: "request_permissions_response";
  request_id: string;
  decision: ApprovalDecision;
};

/** A question was answered, or is void. */
export type RequestResolved = {
  type: "request_resolved";
  request_id: string;
  decision: ApprovalDecision | "answered" | "expired" | "void";
  budgets?: BudgetLimits | null;
};

/** The agent asks a person. */
export type RequestUserInput = {
  type: "request_user_input";
  request_id: string;
  questions: Array<UserQuestion>;
};

/** Answer to a question of an MCP server. */
export type ResolveElicitation = {
  type: "resolve_elicitation";
  server: string;
  request_id: string;
  decision: "accept" | "decline" | "cancel";
  content?: Record<string, unknown> | null;
};

/** An item of the model's input: part of the history. */
export type ResponseItemLine = {
  timestamp: number;
  ordinal: number;
  submission_id?: string | null;
  turn_id?: string | null;
  type: "response_item";
  payload: Message | Reasoning | FunctionCall | FunctionCallOutput | CustomToolCall | CustomToolCallOutput | CompactionItem | OpaqueItem;
};

/** Start a review turn. */
export type Review = {
  type: "review";
  target?: ReviewTarget;
};

/** What a review turn found, most important first. */
export type ReviewCompleted = {
  type: "review_completed";
  correct: boolean;
  explanation: string;
  findings?: Array<ReviewFinding>;
};

/** One thing that a review found. */
export type ReviewFinding = {
  title: string;
  body: string;
  priority?: number;
  confidence?: number | null;
  path?: string | null;
  line_start?: number | null;
  line_end?: number | null;
};

/** What a review looks at: uncommitted changes when neither is given. */
export type ReviewTarget = {
  base?: string | null;
  instructions?: string | null;
};

export type RolloutLine = SessionMetaLine | TurnContextLine | ResponseItemLine | EventMsgLine | CompactedLine | WorldStateLine | ModelRequestLine | EffectLine | SpanLine | StandingLine;

/** Run the user's own command in the thread's sandbox. */
export type RunUserShellCommand = {
  type: "run_user_shell_command";
  command: string;
};

/** A worker took the thread for the first time. */
export type SessionConfigured = {
  type: "session_configured";
  model: string;
  cwd: string;
  rollout_prefix: string;
};

/** First line of a thread. */
export type SessionMeta = {
  thread_id: string;
  tenant_id: string;
  task_id?: string | null;
  spec: TaskSpec;
  base_instructions: string;
  prompt_version: string;
  patchyard_version: string;
  forked_from?: string | null;
};

/** See SessionMeta. */
export type SessionMetaLine = {
  timestamp: number;
  ordinal: number;
  submission_id?: string | null;
  turn_id?: string | null;
  type: "session_meta";
  payload: SessionMeta;
};

/** The set-up command ended. */
export type SetupCompleted = {
  type: "setup_completed";
  exit_code: number | null;
  image: string | null;
  output_tail: string;
  duration_ms: number;
};

/** More output of the set-up or verify command. */
export type SetupOutputDelta = {
  type: "setup_output_delta";
  phase: "setup" | "verify";
  delta: string;
};

/** Runs once, with network, before the agent; its result is an image that agent and verification share. */
export type SetupSpec = {
  command: string;
  timeout_s?: number;
};

/** The set-up command runs. */
export type SetupStarted = {
  type: "setup_started";
  command: string;
  cached: boolean;
};

/** Close the thread: the running turn is interrupted, later submissions answer `thread_closed`. */
export type Shutdown = {
  type: "shutdown";
};

/** See SpanRecord. */
export type SpanLine = {
  timestamp: number;
  ordinal: number;
  submission_id?: string | null;
  turn_id?: string | null;
  type: "span";
  payload: SpanRecord;
};

/** A span that no item stands for (container start, snapshot, queue wait), so that the trace can be rebuilt. */
export type SpanRecord = {
  span_id: string;
  parent_span_id?: string | null;
  name: string;
  started_at: number;
  ended_at: number;
  attributes?: Record<string, string | number | boolean>;
};

/** What a successor has to know and no other line tells. The newest one counts; it is repeated after each Compacted. */
export type Standing = {
  approved?: ApprovedRules;
  agents?: Array<ChildAgent>;
};

/** See Standing. */
export type StandingLine = {
  timestamp: number;
  ordinal: number;
  submission_id?: string | null;
  turn_id?: string | null;
  type: "standing";
  payload: Standing;
};

/** Start a turn; refused as `not_idle` while one runs. */
export type StartIfIdle = {
  type: "start_if_idle";
};

/** Start a turn when the thread is idle, else steer the running one. */
export type StartOrSteer = {
  type: "start_or_steer";
};

/** A new turn was accepted; its id is the submission's. */
export type Started = {
  type: "started";
  turn_id: string;
};

/** Give input to the running turn; refused when it is not that turn. */
export type Steer = {
  type: "steer";
  expected_turn_id: string;
};

/** The input goes to the turn that is active. */
export type Steered = {
  type: "steered";
  turn_id: string;
};

/** A model request broke and is tried again. */
export type StreamError = {
  type: "stream_error";
  message: string;
  attempt: number;
  max_attempts: number;
  retry_in_ms: number;
  error: ErrorInfo;
};

/** Something that the agent did with other agents. */
export type SubAgentItem = {
  id: string;
  type: "sub_agent";
  action: "spawn" | "send" | "wait" | "close";
  agents?: Array<string>;
  message?: string | null;
  until?: number | null;
  status: ItemStatus;
};

/** One entry of a thread's submission queue. */
export type Submission = {
  id: string;
  tenant_id: string;
  thread_id: string;
  op: TurnInput | Interrupt | CleanBackgroundTerminals | RecoverTurn | SuspendTurnAndShutdown | ThreadSettings | TurnSettings | InterAgentCommunication | ExecApproval | PatchApproval | UserInputAnswer | BudgetAnswer | RequestPermissionsResponse | DynamicToolResponse | ResolveElicitation | RefreshMcpServers | ReloadUserConfig | Compact | Review | RunUserShellCommand | Shutdown;
  trace?: TraceContext | null;
  idempotency_key?: string | null;
  author?: string | null;
  submitted_at: number;
};

/** The answer to a submission. */
export type SubmissionReceipt = {
  submission_id: string;
  admission: Started | Steered | Applied | NotSubmitted;
  duplicate?: boolean;
};

/** One paragraph of a reasoning summary. */
export type SummaryText = {
  type: "summary_text";
  text: string;
};

/** Hand the unfinished turn to another worker: flush, no terminal event. */
export type SuspendTurnAndShutdown = {
  type: "suspend_turn_and_shutdown";
};

/** Body of POST /v1/tasks. */
export type TaskCreateRequest = {
  spec: TaskSpec;
  idempotency_key?: string | null;
};

/** What a task is to do. Everything a worker needs, without the catalog. */
export type TaskSpec = {
  repository: GitSource | ArchiveSource | NoSource;
  base?: string | null;
  instruction: string;
  instruction_untrusted?: boolean;
  model?: string | null;
  effort?: string | null;
  setup?: SetupSpec | null;
  verify?: VerifySpec | null;
  approval?: ApprovalMode | GranularApproval;
  sandbox?: ReadOnly | WorkspaceWrite | DangerFullAccess | ExternalSandbox;
  budgets?: Budgets;
  command_timeout_s?: number | null;
  deliverable?: "patch";
  labels?: Record<string, string>;
  hooks?: Record<string, Array<HookSpec>>;
  repository_hooks?: boolean;
};

/** State of a task; each comes with a reason. */
export type TaskStatus = "queued" | "running" | "waiting" | "verifying" | "succeeded" | "failed" | "cancelled";

/** The task moved on. */
export type TaskStatusChanged = {
  type: "task_status_changed";
  status: TaskStatus;
  reason: string;
  error?: ErrorInfo | null;
};

/** A task as the API shows it. */
export type TaskView = {
  id: string;
  tenant_id: string;
  thread_id: string;
  turn_id?: string | null;
  status: TaskStatus;
  reason: string;
  title: string;
  spec: TaskSpec;
  created_at: number;
  started_at?: number | null;
  completed_at?: number | null;
  verified?: boolean | null;
  verify?: VerifyResult | null;
  patch?: PatchSummary | null;
  usage?: TokenUsage | null;
  cost_usd?: number | null;
  error?: ErrorInfo | null;
  final_message?: string | null;
  trace_id?: string | null;
};

/** Text from the user. */
export type TextInput = {
  type: "text";
  text: string;
};

/** The thread takes no more submissions. */
export type ThreadClosed = {
  type: "thread_closed";
};

/** Change the thread's settings for later turns. */
export type ThreadSettings = {
  type: "thread_settings";
  overrides: TurnOverrides;
};

/** Settings changed for later turns. */
export type ThreadSettingsApplied = {
  type: "thread_settings_applied";
  overrides: TurnOverrides;
};

/** After each model response. */
export type TokenCount = {
  type: "token_count";
  last: TokenUsage;
  total: TokenUsage;
  model_context_window?: number | null;
  cost_usd?: number | null;
  rate_limits?: Record<string, unknown> | null;
};

/** Tokens of one request, or a sum over requests. `input_tokens` includes the cached ones. */
export type TokenUsage = {
  input_tokens?: number;
  cached_input_tokens?: number;
  cache_write_input_tokens?: number;
  output_tokens?: number;
  reasoning_output_tokens?: number;
  total_tokens?: number;
};

/** More of a tool call that the model is still typing. */
export type ToolCallInputDelta = {
  type: "tool_call_input_delta";
  item_id: string;
  name: string;
  delta: string;
};

/** W3C trace context of whoever asked. */
export type TraceContext = {
  traceparent: string;
  tracestate?: string | null;
};

/** Terminal: the turn ended normally. */
export type TurnCompleted = {
  type: "turn_completed";
  usage: TokenUsage;
  cost_usd?: number | null;
  model_requests: number;
  tool_calls: number;
  duration_ms: number;
  last_agent_message?: string | null;
};

/** Settings that a turn ran with. */
export type TurnContext = {
  turn_id: string;
  model: string;
  effort?: string | null;
  cwd: string;
  approval: ApprovalMode | GranularApproval;
  sandbox: ReadOnly | WorkspaceWrite | DangerFullAccess | ExternalSandbox;
  prompt_version: string;
};

/** See TurnContext. */
export type TurnContextLine = {
  timestamp: number;
  ordinal: number;
  submission_id?: string | null;
  turn_id?: string | null;
  type: "turn_context";
  payload: TurnContext;
};

/** Terminal: the turn ended with an error. The work so far is kept. */
export type TurnFailed = {
  type: "turn_failed";
  error: ErrorInfo;
  usage: TokenUsage;
  cost_usd?: number | null;
  model_requests?: number;
  tool_calls?: number;
  duration_ms?: number;
};

/** All user input: starts a turn or steers one, by its mode. */
export type TurnInput = {
  type: "turn_input";
  items: Array<TextInput | ImageInput>;
  mode?: StartOrSteer | StartIfIdle | Steer;
  output_schema?: Record<string, unknown> | null;
  overrides?: TurnOverrides | null;
};

/** Terminal: the turn was stopped by a person or a shutdown. */
export type TurnInterrupted = {
  type: "turn_interrupted";
  usage: TokenUsage;
  cost_usd?: number | null;
  model_requests?: number;
  tool_calls?: number;
  duration_ms?: number;
  dropped_submission_ids?: Array<string>;
};

/** Settings of a thread that an Op may change for later turns. None: leave as it is. */
export type TurnOverrides = {
  model?: string | null;
  effort?: string | null;
  approval?: ApprovalMode | GranularApproval | null;
  sandbox?: ReadOnly | WorkspaceWrite | DangerFullAccess | ExternalSandbox | null;
  cwd?: string | null;
};

/** The turn waits and holds no lease, slot or container. */
export type TurnParked = {
  type: "turn_parked";
  reason: "approval" | "user_input" | "budget" | "retry_time" | "agents";
  until?: number | null;
};

/** Another worker goes on with the turn after a restart, hand-over or park. */
export type TurnRecovered = {
  type: "turn_recovered";
  segment: number;
  reason: "worker_lost" | "hand_over" | "unparked";
};

/** Change the settings of the running turn only. */
export type TurnSettings = {
  type: "turn_settings";
  turn_id: string;
  overrides: TurnOverrides;
};

/** A turn began. */
export type TurnStarted = {
  type: "turn_started";
  kind?: "regular" | "review" | "compact" | "user_shell";
  model: string;
  model_context_window?: number | null;
  trace?: TraceContext | null;
  submitted_at: number;
  started_at: number;
};

/** Answers to request_user_input, by question id. */
export type UserInputAnswer = {
  type: "user_input_answer";
  request_id: string;
  answers: Record<string, Array<string>>;
};

/** Input of the user, delivered to the model. */
export type UserMessageItem = {
  id: string;
  type: "user_message";
  content: Array<TextInput | ImageInput>;
  submission_id?: string | null;
  idempotency_key?: string | null;
};

/** One question to a person. */
export type UserQuestion = {
  id: string;
  header: string;
  question: string;
  options?: Array<string>;
};

/** The verify command ended. */
export type VerificationCompleted = {
  type: "verification_completed";
  result: VerifyResult;
};

/** The verify command runs in a fresh container. */
export type VerificationStarted = {
  type: "verification_started";
  round: number;
  command: string;
};

/** Outcome of a verification. */
export type VerifyResult = {
  passed: boolean;
  exit_code: number | null;
  round: number;
  log_artefact_id?: string | null;
  output_tail?: string;
  duration_ms?: number;
  error?: ErrorInfo | null;
};

/** The check that makes a patch *verified*: exit code 0 in a fresh container on base + patch (+ overlay). */
export type VerifySpec = {
  command: string;
  overlay_artefact_id?: string | null;
  timeout_s?: number;
};

/** Something a person should know; the turn goes on. */
export type Warning_ = {
  type: "warning";
  message: string;
};

/** Checkout, set-up image and container are ready. */
export type WorkspacePrepared = {
  type: "workspace_prepared";
  base_commit: string | null;
  image: string;
  container?: string | null;
  confinement?: Record<string, unknown>;
  duration_ms: number;
};

/** Commands may write in the workspace, except below protected names (`.git`, `.patchyard`, `.codex`, `.agents`, `.aws`). */
export type WorkspaceWrite = {
  type: "workspace-write";
  writable_roots?: Array<string>;
  network_access?: boolean;
};

/** Context that was told to the model, so that later turns send only differences. */
export type WorldState = {
  full: boolean;
  state: Record<string, unknown>;
};

/** See WorldState. */
export type WorldStateLine = {
  timestamp: number;
  ordinal: number;
  submission_id?: string | null;
  turn_id?: string | null;
  type: "world_state";
  payload: WorldState;
};
