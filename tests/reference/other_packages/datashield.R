# Rscript datashield.R heart.csv OUT: DataSHIELD's figures of docs/other_packages.md, as JSON in OUT. DSLite serves the tables.
suppressMessages({library(DSI); library(DSLite); library(dsBase); library(dsBaseClient)})
options(datashield.progress = FALSE)
heart <- na.omit(read.csv(commandArgs(TRUE)[1], na.strings = c("NA", ""), stringsAsFactors = TRUE)[c("disease", "age", "sex", "oldpeak", "exang", "hospital")])

served <- function(table, site, call) {
  server <- newDSLiteServer(lapply(split(table, site), droplevels), config = defaultDSConfiguration(include = "dsBase"))
  # glmSLMADS.assign looks for the table in R's global environment: that of a site's session, but not in DSLite.
  show <- function(sid) list2env(as.list(server$getSession(sid)), .GlobalEnv)
  aggregate <- server$aggregate; assign_ <- server$assignExpr
  for (name in c("aggregate", "assignExpr")) unlockBinding(name, server)
  server$aggregate <- function(sid, expr) { show(sid); aggregate(sid, expr) }
  server$assignExpr <- function(sid, symbol, expr) { show(sid); assign_(sid, symbol, expr) }
  assign("server", server, .GlobalEnv)
  logins <- newDSLoginBuilder()
  for (name in levels(factor(site))) logins$append(server = gsub("[^A-Za-z]", "", name), url = "server", table = name, driver = "DSLiteDriver")
  connections <- datashield.login(logins$build(), assign = TRUE, symbol = "D")
  on.exit(datashield.logout(connections))
  call(connections)
}
count <- function(x) {
  if (is.function(x) || is.language(x) || is.environment(x)) 0
  else if (isS4(x)) sum(unlist(lapply(slotNames(x), function(s) count(slot(x, s)))))
  else if (is.list(x)) sum(unlist(lapply(unclass(x), count)))
  else if (is.numeric(x) || is.logical(x)) length(x) else 0
}
figures <- function(r, names, exchanges) {
  pooled <- r$SLMA.pooled.ests.matrix
  list(terms = setNames(Map(c, unname(pooled[, "pooled.REML"]), unname(pooled[, "se.REML"])), names), exchanges = exchanges,
       numbers = count(r$output.summary[[1]]))
}
batch <- function(size) (as.integer(factor(as.character(lme4::Dyestuff$Batch))) - 1) %/% size
by_batch <- function(size) served(lme4::Dyestuff, paste0("s", letters[batch(size) + 1]), function(to) ds.lmerSLMA("Yield~1+(1|Batch)", dataName = "D", datasources = to))
sleep <- lme4::sleepstudy
group <- paste0("s", letters[(as.integer(sleep$Subject) - 1) %/% 6 + 1])
heart_glm <- served(heart, heart$hospital, function(to) ds.glmSLMA("disease~age+sex+oldpeak+exang", family = "binomial", dataName = "D", datasources = to))
heart_glmer <- served(heart, heart$hospital, function(to) ds.glmerSLMA("disease~age+sex+oldpeak+exang+(1|hospital)", family = "binomial", dataName = "D", datasources = to))
out <- list(
  version = as.character(packageVersion("dsBaseClient")),
  dyestuff = figures(by_batch(2), "(Intercept)", 1), dyestuff_two_sites_of_three = figures(by_batch(3), "(Intercept)", 1),
  sleepstudy = figures(served(sleep, group, function(to) ds.lmerSLMA("Reaction~Days+(Days||Subject)", dataName = "D", datasources = to)), c("(Intercept)", "Days"), 1),
  heart = figures(heart_glm, c("(Intercept)", "age", "sexMale", "oldpeak", "exangyes"), 3),
  heart_of_each_hospital = list(sex = unname(heart_glm$betamatrix.valid["sexMale", ]), se = unname(heart_glm$sematrix.valid["sexMale", ])),
  error_of_ds.glmerSLMA = heart_glmer[[1]]$errorMessage)
write(jsonlite::toJSON(auto_unbox = TRUE, digits = 9, pretty = 1, out), commandArgs(TRUE)[2])
